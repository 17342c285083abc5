"""Planned and unmodified step in turns, as a user's loop would run each, and by how much they differ."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from togi.core.records import Interval
from togi.measure.interval import ratio_interval

_NARROW_X = 1.02
"""Ends of an interval that differ by no more than this factor tell enough."""

Condition = Callable[[], AbstractContextManager[object]]
"""The circumstances of one run: a plan that stands on the module, or none."""


@dataclass
class PairedTimes:
    """Milliseconds of both, round by round."""

    unmodified_ms: list[float] = field(default_factory=list)
    planned_ms: list[float] = field(default_factory=list)

    @property
    def step_ms(self) -> float:
        """The planned step's."""
        return statistics.median(self.planned_ms)

    @property
    def speedup_x(self) -> Interval:
        """The unmodified step's time over the planned one's."""
        return ratio_interval(self.unmodified_ms, self.planned_ms)

    @property
    def is_narrow(self) -> bool:
        interval = self.speedup_x
        return interval.low > 0 and interval.high <= _NARROW_X * interval.low


def in_turns(
    run_ms: Callable[[], float], unmodified: Condition, *planned: Condition, rounds: int, ends: float
) -> list[PairedTimes]:
    """Time a run without a plan and one under each, once a round, in random order.

    Args:
        run_ms: one run, in milliseconds.
        rounds: at most. None begins that would not end by ``ends`` (on ``time.monotonic()``), but the first, and none
            once all differences are narrow.

    Returns:
        First the unmodified run against itself, then each of ``planned``.
    """
    conditions = [unmodified, *planned]
    times: list[list[float]] = [[] for _ in conditions]
    pairs = [PairedTimes(times[0], of_condition) for of_condition in times]
    order, shuffled, began = list(range(len(conditions))), random.Random(0), time.monotonic()
    for done in range(1, rounds + 1):
        shuffled.shuffle(order)
        for at in order:
            with conditions[at]():
                times[at].append(run_ms())
        now = time.monotonic()
        if now + (now - began) / done > ends or (planned and all(pair.is_narrow for pair in pairs)):
            break
    return pairs
