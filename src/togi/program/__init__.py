"""Programs of several modules: what a run of one calls, and parts of it replaced by faster ones."""
