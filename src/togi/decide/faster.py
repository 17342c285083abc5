"""The definition of "faster": what an interval of speed-ups must show before one thing is called faster than another.

Every report, ranking, verdict and gate of togi asks here, with the interval that it prints, so that no two of them can
contradict each other. To change what counts as faster, change the constants.
"""

from __future__ import annotations

import math

from pydantic import Field

from togi.core.backports import StrEnum
from togi.core.records import Interval, Record

MARGIN = 0.01
"""The smallest difference in speed that matters, as a share of the time."""
PROCESS_BIAS = 0.03
"""By how much two processes of one and the same recipe may differ for as long as they live, as a share of the time.

It comes from where their memory lies, and no number of rounds averages it out. On two cores of a server CPU (November
2026), of the eight pairs that a shared machine left calm, seven differed by less than 2 % and one by 3.6 %: with the
margin, this lies above all of them (2 % would not). ``benchmarks/noise.py --bias`` measures it on another machine."""
CONFIDENCE = 0.95
"""Of all intervals of one comparison together, however often and at however many contestants one looks."""
CONCLUSIVE_X = 1.5
"""Ends of an interval that differ by more than this factor say that something other than the contestants was measured
(threads of one of them sharing a core for seconds). Nothing is concluded from such an interval, unless it is further
from no difference than it is wide: 5 to 9 times as fast is faster, 1.2 to 2.5 times may be a disturbance."""
FAR_X = 10.0
"""Orders of magnitude are not noise: an interval whose nearer end differs by more than this factor from no difference
may be as wide as it likes."""
DISTURBANCE_X = 100.0
"""By how much a busy machine disturbs a median of few rounds at most (threads of one engine that wait for each other
lose a factor of a hundred). It bounds an interval that has too few rounds for ends of its own."""

_TRIALS_APART = 0.95
"""Trials at different times differ by more than their intervals say: by this factor at most."""


class Speed(StrEnum):
    """What an interval of speed-ups allows to say."""

    FASTER = "faster"
    SAME = "same speed"
    SLOWER = "slower"
    UNCLEAR = "cannot tell"


class Criterion(Record):
    """How large a difference must be. The fields are shares of the time, and a probability."""

    margin: float = Field(default=MARGIN, ge=0)
    process_bias: float = Field(default=PROCESS_BIAS, ge=0)
    """Zero where both run in one process."""
    confidence: float = Field(default=CONFIDENCE, gt=0, lt=1)

    @property
    def band_x(self) -> float:
        """Speed-ups between its inverse and this do not count as a difference."""
        return 1.0 + self.margin + self.process_bias

    def speed(self, speedup_x: Interval) -> Speed:
        """``speedup_x``: the other's time over this one's, above 1 is faster."""
        if 1.0 / self.band_x <= speedup_x.low and speedup_x.high <= self.band_x:
            return Speed.SAME
        bounded = _bounded(speedup_x)
        if not conclusive(speedup_x):
            return Speed.UNCLEAR
        if bounded.low > self.band_x:
            return Speed.FASTER
        return Speed.SLOWER if bounded.high < 1.0 / self.band_x else Speed.UNCLEAR

    def faster(self, speedup_x: Interval) -> bool:
        """Beyond doubt, and by more than what matters."""
        return self.speed(speedup_x) is Speed.FASTER

    def points_to_faster(self, speedup_x: Interval) -> bool:
        """In the median, and not beyond doubt: more rounds may tell."""
        return self.speed(speedup_x) is Speed.UNCLEAR and speedup_x.median > self.band_x

    def slower(self, speedup_x: Interval) -> bool:
        return self.speed(speedup_x) is Speed.SLOWER

    def at_most_same(self, speedup_x: Interval) -> bool:
        """Surely not faster; whether it is slower is not said."""
        return _bounded(speedup_x).high <= self.band_x

    def at_least_same(self, speedup_x: Interval) -> bool:
        """Surely not slower; whether it is faster is not said."""
        return _bounded(speedup_x).low >= 1.0 / self.band_x


def may_yet_lead(speedup_x: Interval, fastest_x: Interval) -> bool:
    """Whether it could still turn out faster than the fastest so far, both measured in trials of their own."""
    return speedup_x.high >= fastest_x.low * _TRIALS_APART


def conclusive(speedup_x: Interval) -> bool:
    """It is narrow enough to conclude anything from it, or far enough from no difference.

    How large a difference counts has no part in it: a gate that forgives more must not find the same interval noisier.
    """
    ends = _bounded(speedup_x)
    if not 0 < ends.low <= ends.high < math.inf:  # no measurement at all, NaN included
        return False
    away_x = max(ends.low, 1 / ends.high)
    return away_x >= FAR_X or ends.high / ends.low <= max(CONCLUSIVE_X, away_x)


def beyond_disturbance(speedup_x: Interval) -> bool:
    """The two are further apart than a busy machine puts them."""
    return not 1 / DISTURBANCE_X <= speedup_x.median <= DISTURBANCE_X


def _bounded(speedup_x: Interval) -> Interval:
    """With the ends that no disturbance exceeds, where too few rounds gave it none."""
    low = speedup_x.low if speedup_x.low > 0 else speedup_x.median / DISTURBANCE_X
    high = speedup_x.high if speedup_x.high < math.inf else speedup_x.median * DISTURBANCE_X
    return Interval(median=speedup_x.median, low=low, high=high)


BETWEEN_PROCESSES = Criterion()
"""For contestants in processes of their own: 4 %."""
WITHIN_PROCESS = Criterion(process_bias=0.0)
"""For two things that run in one process: 1 %."""


def inverse(speedup_x: Interval) -> Interval:
    """How many times as fast the other is; without an upper end where too few rounds gave no lower one."""
    return Interval(
        median=1.0 / speedup_x.median,
        low=1.0 / speedup_x.high,
        high=1.0 / speedup_x.low if speedup_x.low > 0 else math.inf,
    )


def change(now: Interval, before: Interval) -> Interval:
    """By what a speed-up was multiplied since an earlier, independent measurement of it.

    The ends are those of G. Y. Zou and A. Donner, "Construction of confidence limits about effect measures: a general
    approach", Statistics in Medicine 27 (2008), for the difference of the logarithms.
    """
    down = math.hypot(_log_ratio(now.median, now.low), _log_ratio(before.high, before.median))
    up = math.hypot(_log_ratio(now.high, now.median), _log_ratio(before.median, before.low))
    median = now.median / before.median
    return Interval(median=median, low=median * math.exp(-down), high=median * math.exp(up))


def _log_ratio(above: float, below: float) -> float:
    """Infinite where an interval of too few rounds has no end."""
    return math.log(above / below) if below > 0 else math.inf
