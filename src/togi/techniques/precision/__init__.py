"""Techniques of the precision stage: one file each."""
