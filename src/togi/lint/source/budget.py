"""The steps that may be spent on one file, so that checking generated or hostile source ends."""

from __future__ import annotations

MOST_STEPS = 4_000_000
"""Nested loops are interpreted up to three times each, and rules climb from many nodes up deep trees: some files would
take days."""
INTERPRETED = 10
"""Steps of interpreting a statement or an expression; one is looking at a node."""


class TooManyStepsError(Exception):
    """The file has used up its budget."""


class StepBudget:
    """Counts the steps of everything that asks about one file."""

    def __init__(self) -> None:
        self.left = MOST_STEPS

    def take(self, steps: int) -> None:
        """Raises TooManyStepsError where none are left."""
        self.left -= steps
        if self.left < 0:
            raise TooManyStepsError
