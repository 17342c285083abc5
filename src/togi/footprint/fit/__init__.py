"""Make a training step fit a byte budget: a plan that is searched, measured, applied and proven."""
