"""Predicts the memory of a run without running it: on fake tensors, for the CPU here or for a GPU elsewhere."""
