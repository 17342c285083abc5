"""A study from start to end: survey, trials, race, choice, proof. Runs in the parent; no torch, no model."""
