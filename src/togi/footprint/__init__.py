"""Memory: where it goes, what it will need elsewhere, and how to make a model fit into what there is."""
