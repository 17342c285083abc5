"""What an interval of speed-ups allows to say, between processes and within one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from togi.core.records import Interval
from togi.decide.faster import BETWEEN_PROCESSES, WITHIN_PROCESS, Speed, conclusive


def interval(low: float, high: float) -> Interval:
    return Interval(median=(low + high) / 2, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "between", "within"),
    [
        (1.05, 1.10, Speed.FASTER, Speed.FASTER),
        (1.02, 1.03, Speed.SAME, Speed.FASTER),
        (1.04, 1.10, Speed.UNCLEAR, Speed.FASTER),
        (0.995, 1.005, Speed.SAME, Speed.SAME),
        (0.97, 0.98, Speed.SAME, Speed.SLOWER),
        (0.90, 0.95, Speed.SLOWER, Speed.SLOWER),
        (0.90, 1.10, Speed.UNCLEAR, Speed.UNCLEAR),
        (1.10, 1.70, Speed.UNCLEAR, Speed.UNCLEAR),
        (0.0, math.inf, Speed.UNCLEAR, Speed.UNCLEAR),
    ],
)
def test_words_for_an_interval(low: float, high: float, between: Speed, within: Speed) -> None:
    found = interval(low, high)
    assert (BETWEEN_PROCESSES.speed(found), WITHIN_PROCESS.speed(found)) == (between, within)


def test_between_processes_an_interval_must_clear_the_largest_bias_that_was_measured() -> None:
    assert BETWEEN_PROCESSES.band_x == pytest.approx(1.04)
    assert not BETWEEN_PROCESSES.faster(interval(1.036, 1.04))


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_what_one_is_the_other_is_not(a: float, b: float) -> None:
    found = interval(min(a, b), max(a, b))
    inverse = interval(1 / max(a, b), 1 / min(a, b))
    assert BETWEEN_PROCESSES.faster(found) == BETWEEN_PROCESSES.slower(inverse)
    assert not (BETWEEN_PROCESSES.faster(found) and BETWEEN_PROCESSES.at_most_same(found))
    assert conclusive(found) or not BETWEEN_PROCESSES.faster(found)
