"""Techniques of the rewrite stage: one file each."""
