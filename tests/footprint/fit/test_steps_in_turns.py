"""What a plan costs is told from paired rounds, with how sure that is; "shorter" is said of what is proven alone."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from togi.core.records import Interval
from togi.decide.faster import WITHIN_PROCESS
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.policies import SavePolicy
from togi.footprint.fit.result import FitResult, Point, StepProof
from togi.footprint.fit.turns import PairedTimes, in_turns
from togi.render.fit_text import fit_text
from togi.render.terminal import SafeConsole


class Machine:
    """A step takes so many milliseconds by what stands on the module, on a machine that drifts."""

    def __init__(self, *step_ms: float, drift: float = 0.0, noise: float = 0.0) -> None:
        self.step_ms, self.drift, self.noise = step_ms, drift, noise
        self.now: int | None = None
        self.order: list[int] = []
        self._random = random.Random(1)

    @contextmanager
    def _standing(self, number: int) -> Iterator[None]:
        self.now = number
        yield
        self.now = None

    def run_ms(self) -> float:
        assert self.now is not None
        self.order.append(self.now)
        slower = 1 + self.drift * len(self.order) + self.noise * abs(self._random.gauss(0, 1))
        return self.step_ms[self.now] * slower

    def race(self, rounds: int = 24, seconds: float = 60.0) -> list[PairedTimes]:
        conditions = [lambda number=number: self._standing(number) for number in range(len(self.step_ms))]
        return in_turns(self.run_ms, *conditions, rounds=rounds, ends=time.monotonic() + seconds)


def test_a_drifting_machine_changes_no_ratio() -> None:
    _, planned = Machine(100.0, 122.0, drift=0.01).race()
    assert planned.speedup_x.median == pytest.approx(100 / 122, rel=0.02)
    assert planned.speedup_x.low <= 100 / 122 <= planned.speedup_x.high


def test_rounds_end_once_the_difference_is_narrow() -> None:
    machine = Machine(100.0, 110.0)
    _, planned = machine.race()
    assert planned.is_narrow
    assert len(planned.planned_ms) < 12
    noisy = Machine(100.0, 110.0, noise=0.5)
    assert len(noisy.race()[1].planned_ms) == 24


def test_both_take_the_first_turn_now_and_then() -> None:
    machine = Machine(100.0, 110.0, noise=0.5)
    machine.race()
    assert set(machine.order[::2]) == {0, 1}


def test_without_time_one_round_is_run_and_says_that_it_is_too_few() -> None:
    machine = Machine(100.0, 110.0)
    _, planned = machine.race(seconds=-1.0)
    assert len(planned.planned_ms) == 1
    assert not planned.speedup_x.has_ends
    assert "too few rounds" in _text(planned.speedup_x)


def _text(speedup_x: Interval) -> str:
    plan = Plan(policies=(SavePolicy(value="aten.relu.default#0", module="0"),))
    found = FitResult(
        budget_bytes=900,
        fits=True,
        plan=plan,
        plain=Point(peak_bytes=1000, recompute_ms=0, changes=0, step_ms=100.0),
        chosen=Point(peak_bytes=800, recompute_ms=1, changes=1, step_ms=100.0 / speedup_x.median),
        speedup_x=speedup_x,
        proof=StepProof(exact=True),
        static_bytes=1,
        floor_bytes=1,
    )
    console = SafeConsole(width=300)
    with console.capture() as capture:
        console.print(fit_text(found))
    return capture.get().splitlines()[0]


@given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3))
def test_shorter_and_longer_are_said_by_the_one_criterion(ends: list[float]) -> None:
    low, median, high = sorted(ends)
    interval = Interval(median=median, low=low, high=high)
    text = _text(interval)
    assert ("shorter" in text) is WITHIN_PROCESS.faster(interval)
    assert ("longer: " in text and "cannot tell" not in text) is WITHIN_PROCESS.slower(interval)


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        (Interval(median=0.82, low=0.80, high=0.84), "22 % longer: 19 % to 25 %"),
        (Interval(median=1.034, low=0.90, high=1.15), "cannot tell whether that is longer: -13 % to +11 %"),
        (Interval(median=1.0, low=0.995, high=1.005), "no longer by more than 1.0 %"),
        (Interval(median=1.25, low=1.20, high=1.30), "20 % shorter: 17 % to 23 %"),
    ],
    ids=["slower", "lottery", "same", "faster"],
)
def test_what_is_said(interval: Interval, said: str) -> None:
    assert f"({said})" in _text(interval)
