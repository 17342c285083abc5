"""How much memory a run would need, without running it: on fake tensors, for the CPU here or for a GPU elsewhere."""
