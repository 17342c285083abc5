"""What the user decides about a search."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import Field

from togi.core.errors import UnknownNameError, nearest
from togi.core.records import Record
from togi.techniques.base import Technique

ALL = "approximate"


class Effort(StrEnum):
    """How much is tried. The time limit holds in each."""

    QUICK = "quick"
    """Only the few most promising recipes."""
    NORMAL = "normal"
    """Until nothing left is expected to be 1 % better."""
    THOROUGH = "thorough"
    """Everything, the most promising first."""

    @property
    def max_trials(self) -> int | None:
        """Including the reference and the original."""
        return 8 if self is Effort.QUICK else None

    @property
    def cost_weight(self) -> float:
        """How much a trial's cost counts against its promise: with few trials, each should count."""
        return 0.5 if self is Effort.QUICK else 1.0

    @property
    def least_improvement(self) -> float:
        """The search ends when no recipe is expected to lower the best time by this share."""
        return 0.0 if self is Effort.THOROUGH else 0.01


class SearchSettings(Record):
    """What to search, and for how long."""

    effort: Effort = Effort.NORMAL
    allow: tuple[str, ...] = ()
    """Approximate techniques that may be tried: ids, beginnings of ids up to an underscore (``int8`` allows
    ``int8_openvino``), or ``approximate`` for all."""
    only: tuple[str, ...] = ()
    """Where given, no other technique is tried (``no_grad`` always is: it is the reference)."""
    without: tuple[str, ...] = ()
    time_limit_s: float | None = Field(default=None, ge=0)
    max_memory_bytes: int | None = Field(default=None, ge=0)
    """Recipes whose footprint is larger are tried but never the best."""
    max_error: float | None = Field(default=None, ge=0)
    """Largest relative root-mean-square error of an approximate recipe."""
    seed: int = 0
    """Breaks ties."""

    def allows(self, technique: Technique) -> bool:
        """Whether it is exact, or approximate and allowed."""
        return technique.exact or any(_names(name, technique.id) for name in self.allow)

    def check(self, techniques: Iterable[str]) -> None:
        """Raises UnknownNameError for a name that no technique has."""
        known = list(techniques)
        for name in (*self.only, *self.without):
            if name not in known:
                raise UnknownNameError(
                    f"there is no technique '{name}'{nearest(name, known) or '.'} 'togi explain' lists them."
                )
        for name in self.allow:
            if not any(_names(name, id) for id in known):
                raise UnknownNameError(f"there is no technique '{name}' to allow{nearest(name, [*known, ALL]) or '.'}")


def _names(name: str, id: str) -> bool:
    return name in (ALL, id) or id.startswith(f"{name}_")
