"""Techniques of the layout stage: one file each."""
