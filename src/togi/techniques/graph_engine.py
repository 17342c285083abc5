"""The base of engines that are libraries of their own, which take a graph and compute it outside of torch."""

from __future__ import annotations

import abc
from typing import ClassVar

from togi.core.records import Facts
from togi.techniques.base import (
    FOLDS_CONSTANTS,
    OUTSIDE_TORCH,
    OWN_LAYOUT,
    Applies,
    Engine,
    Refuses,
    changes_buffers,
)

OF_A_LIBRARY = frozenset({FOLDS_CONSTANTS, OUTSIDE_TORCH, OWN_LAYOUT})
"""What each of them provides, besides its own name."""


class GraphEngine(Engine):
    """Runs the module as a graph without state, in a library that folds constants and arranges memory as it likes."""

    library: ClassVar[str]
    """Its name for people."""

    def applies(self, facts: Facts) -> Applies | Refuses:
        return self.why_not(facts) or changes_buffers(facts, self.library) or Applies()

    @abc.abstractmethod
    def why_not(self, facts: Facts) -> Refuses | None:
        """Refuse such a subject for a reason of the engine's own."""
