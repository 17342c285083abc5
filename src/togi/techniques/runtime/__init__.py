"""Techniques of the runtime stage: one file each."""
