"""Limits on what the chosen recipe may take, and how far a trial keeps them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from togi.core.quantities import milliseconds, size, times
from togi.core.records import MeasuredTrial, Record
from togi.core.settings import Settings


class Budget(Record):
    """What the chosen recipe may take; None: as much as it likes."""

    max_memory_bytes: int | None = None
    """Idle and peak together. A footprint that is not known meets no limit."""
    max_latency_s: float | None = None
    """Of a call."""
    max_first_call_s: float | None = None
    """From loading its files to the first answer: known once it was loaded from them, and until then no obstacle."""

    @classmethod
    def of(cls, settings: Settings | Mapping[str, Any]) -> Budget:
        """Those of a study's settings, or of their JSON."""
        given = settings if isinstance(settings, Mapping) else vars(settings)
        return cls(**{name: given.get(name) for name in cls.model_fields})

    @property
    def limited(self) -> bool:
        return self != UNLIMITED

    def exceeded(self, trial: MeasuredTrial) -> str:
        """The first limit that it does not keep, in a sentence; empty where it fits."""
        for kind in _MEASURES:
            limit, value = kind.limit(self), kind.of(trial)
            if limit is not None and value > limit:
                said, allowed = kind.text(value), kind.text(limit)
                if said == allowed:  # but for what is rounded away
                    said, allowed = kind.exact(value), kind.exact(limit)
                return kind.exceeded.format(said, allowed)
        return ""

    def fits(self, trial: MeasuredTrial) -> bool:
        return not self.exceeded(trial)

    def kept_by_none(self, trials: Sequence[MeasuredTrial]) -> str:
        """The first limit that none of them keeps, with the one that is nearest to it, in words; empty where there is
        none such."""
        for kind in _MEASURES:
            limit = kind.limit(self)
            if limit is not None and trials and all(kind.of(trial) > limit for trial in trials):
                nearest = min(trials, key=lambda trial: (kind.of(trial), trial.recipe.label))
                least = kind.in_full(kind.of(nearest))
                speed = times(nearest.speedup_x.median)
                label = nearest.recipe.label
                return kind.least.format(limit=kind.in_full(limit), label=label, least=least, speed=speed)
        return ""


UNLIMITED = Budget()


@dataclass(frozen=True)
class _Measure:
    """Something that can be limited. ``least`` tells of the recipe that needs least where none keeps the limit."""

    limit: Callable[[Budget], float | None]
    of: Callable[[MeasuredTrial], float]
    text: Callable[[float], str]
    in_full: Callable[[float], str]
    exact: Callable[[float], str]
    exceeded: str
    least: str


def memory_of(trial: MeasuredTrial) -> float:
    footprint = trial.footprint
    return math.inf if footprint is None else float(footprint.total_bytes)


def _size(count: float) -> str:
    return size(count) if math.isfinite(count) else "an unknown amount"


def _bytes(count: float) -> str:
    return f"{size(count)} ({int(count):,} bytes)" if math.isfinite(count) else _size(count)


def _milliseconds_of(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


_MEASURES = (
    _Measure(
        limit=lambda budget: budget.max_memory_bytes,
        of=memory_of,
        text=_size,
        in_full=_bytes,
        exact=_bytes,
        exceeded="it needs {} of memory, the limit is {}",
        least="fits into {limit}; the smallest is {label}: {least}, at {speed} the speed of plain eager",
    ),
    _Measure(
        limit=lambda budget: _milliseconds_of(budget.max_latency_s),
        of=lambda trial: trial.timing.waited_ms,
        text=milliseconds,
        in_full=milliseconds,
        exact=lambda ms: f"{ms:.10g} ms",
        exceeded="a call takes {}, the limit is {}",
        least="answers a call within {limit}; the quickest is {label}: {least}",
    ),
    _Measure(
        limit=lambda budget: _milliseconds_of(budget.max_first_call_s),
        of=lambda trial: trial.timing.start_ms or 0.0,
        text=milliseconds,
        in_full=milliseconds,
        exact=lambda ms: f"{ms:.10g} ms",
        exceeded="it gives its first answer {} after its files are loaded, the limit is {}",
        least="gives its first answer within {limit}; the quickest is {label}: {least}",
    ),
)
