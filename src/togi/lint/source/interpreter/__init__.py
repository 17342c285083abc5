"""Abstract interpretation: what every expression of a scope is, found without running it."""
