"""The effort of a study: ``--effort``. A file of its own, so that the command line need not import the settings."""

from __future__ import annotations

from enum import StrEnum
from typing import final

from togi.core.errors import UnknownNameError, nearest


@final
class Effort(StrEnum):
    """How much is tried. The time limit holds in each."""

    QUICK = "quick"
    """Only the few most promising recipes."""
    NORMAL = "normal"
    """Until nothing left is expected to be 1 % better."""
    THOROUGH = "thorough"
    """Everything, the most promising first."""

    @classmethod
    def of(cls, name: object) -> Effort:
        """By name. Raises UnknownNameError with the nearest name."""
        if name in list(cls):
            return cls(str(name))
        raise UnknownNameError(f"there is no effort {name!r}{nearest(str(name), cls) or '.'} It is {', '.join(cls)}.")

    @property
    def time_limit_s(self) -> float | None:
        """How long a study takes where no limit is given; the race of the finalists and the proof are inside it."""
        return {Effort.QUICK: 90.0, Effort.NORMAL: 300.0, Effort.THOROUGH: None}[self]

    @property
    def max_trials(self) -> int | None:
        """Including the reference and the original."""
        return 8 if self is Effort.QUICK else None

    @property
    def cost_weight(self) -> float:
        """How much a trial's cost counts against what is expected of it: with few trials, each should count."""
        return 0.5 if self is Effort.QUICK else 1.0

    @property
    def least_improvement(self) -> float:
        """The search ends when no recipe is expected to lower the best time by this share."""
        return 0.0 if self is Effort.THOROUGH else 0.01
