"""Findings in every form, one file per form. All of them are pure: a result in, text or a document out."""
