"""Techniques of the engine stage: one file each."""
