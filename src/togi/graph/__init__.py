"""A candidate as a graph: captured by torch.export, read as linear algebra, and edited."""
