"""What an interval of speed-ups allows to say, between processes and within one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from togi.core.records import Interval
from togi.decide.faster import BETWEEN_PROCESSES, WITHIN_PROCESS, Criterion, Speed, change, conclusive


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
        (0.95, 0.98, Speed.UNCLEAR, Speed.SLOWER),
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
    assert conclusive(found) == conclusive(inverse)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.5, 2.0, Speed.SAME),
        (0.499, 0.6, Speed.UNCLEAR),
        (1.9, 2.001, Speed.UNCLEAR),
        (2.0, 2.5, Speed.UNCLEAR),
        (2.001, 2.5, Speed.FASTER),
        (0.4, 0.5, Speed.UNCLEAR),
        (0.4, 0.499, Speed.SLOWER),
        (3.0, 9.0, Speed.FASTER),
        (3.0, 9.1, Speed.UNCLEAR),
        (0.05, 0.22, Speed.SLOWER),
        (0.1, 0.46, Speed.UNCLEAR),
    ],
)
def test_the_ends_of_the_band_are_no_difference(low: float, high: float, said: Speed) -> None:
    """A band of exactly a half to 2."""
    criterion = Criterion(margin=0.75, process_bias=0.25)
    found = interval(low, high)
    assert criterion.speed(found) is said
    assert criterion.faster(found) == (said is Speed.FASTER)
    assert criterion.slower(found) == (said is Speed.SLOWER)
    assert criterion.at_most_same(found) == (high <= 2.0)


def test_an_interval_is_conclusive_if_narrow_or_far_from_no_difference() -> None:
    assert conclusive(interval(1.2, 1.8))
    assert not conclusive(interval(1.2, 1.801))
    assert conclusive(interval(2.08, 4.32))
    assert not conclusive(interval(2.08, 4.33))
    assert not conclusive(interval(0.0, 1.0))


def test_what_points_to_faster_may_be_measured_on() -> None:
    assert BETWEEN_PROCESSES.points_to_faster(Interval(median=1.4, low=1.11, high=1.74))
    assert BETWEEN_PROCESSES.points_to_faster(Interval(median=1.05, low=0.9, high=1.2))
    assert not BETWEEN_PROCESSES.points_to_faster(Interval(median=1.4, low=1.2, high=1.5))
    assert not BETWEEN_PROCESSES.points_to_faster(Interval(median=1.03, low=0.9, high=1.2))


@pytest.mark.parametrize("wrong", [{"margin": -0.01}, {"process_bias": -0.01}, {"confidence": 0}, {"confidence": 1}])
def test_a_criterion_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Criterion.model_validate(wrong)
    assert Criterion(margin=0, process_bias=0).band_x == 1.0
    assert Criterion(confidence=0.99).confidence == 0.99
    assert (BETWEEN_PROCESSES.confidence, WITHIN_PROCESS.band_x) == (0.95, 1.01)


def test_a_wide_interval_is_faster_only_if_its_low_end_is_far_above_one() -> None:
    assert BETWEEN_PROCESSES.faster(Interval(median=900, low=700, high=1100))
    assert BETWEEN_PROCESSES.faster(Interval(median=6.73, low=5.63, high=9.46))
    assert BETWEEN_PROCESSES.slower(Interval(median=1 / 900, low=1 / 1100, high=1 / 700))
    assert not BETWEEN_PROCESSES.faster(Interval(median=3.0, low=1.5, high=9.0))
    assert not BETWEEN_PROCESSES.faster(Interval(median=9.0, low=4.0, high=float("inf")))


def test_a_change_is_the_ratio_with_the_doubt_of_both_measurements() -> None:
    before, now = Interval(median=2, low=1.8, high=2.2), Interval(median=1, low=0.9, high=1.1)
    found = change(now, before)
    assert found.median == 0.5
    assert 0.9 / 2.2 < found.low < 0.45  # both at their worst is less likely than one of them
    assert 0.55 < found.high < 1.1 / 1.8
    certain = Interval(median=2, low=2, high=2)
    assert change(now, certain).low == pytest.approx(0.45)
    assert change(now, certain).high == pytest.approx(0.55)


def test_a_change_without_enough_rounds_has_no_ends() -> None:
    endless = Interval(median=1, low=0, high=math.inf)
    for found in (change(endless, Interval(median=2, low=2, high=2)), change(endless, endless)):
        assert (found.low, found.high) == (0, math.inf)
        assert not BETWEEN_PROCESSES.slower(found)
