"""A race whose result is made up, for tests of what becomes of it. No torch."""

from __future__ import annotations

from typing import Any

from togi.core.records import Interval, Noise
from togi.decide.faster import inverse
from togi.machine.describe import machine
from togi.study.comparison import Comparison
from togi.study.contestants import Contestant
from togi.study.yardstick import NAME


class MadeUp:
    """Stands for the race: as many times as fast as the other, with an interval of this width."""

    def __init__(self) -> None:
        self.speed, self.share = 1.2, 0.01

    def __call__(self, subjects: Any, inputs: Any, **options: Any) -> Comparison:
        ends = Interval(median=self.speed, low=self.speed * (1 - self.share), high=self.speed * (1 + self.share))
        other = NAME if options.get("yardstick") else "old"
        one = Interval(median=1, low=1, high=1)
        contestants = (
            Contestant(name="new", latency_ms=one, own_process=False),
            Contestant(name=other, latency_ms=one, speedup_x=inverse(ends), own_process=False),
        )
        noise = Noise(spread=0.01, warnings=("a drum was beaten",))
        return Comparison(contestants=contestants, machine=machine(), verdict=f"new stands to {other}", noise=noise)
