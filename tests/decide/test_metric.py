"""The direction of a metric, what cannot judge, and a drop that is compared as its values round."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from togi.core.choices import Direction
from togi.decide.metric import drop, judged, shown, within

HIGHER, LOWER = Direction.HIGHER, Direction.LOWER


@pytest.mark.parametrize(
    ("original", "damaged", "declared", "better"),
    [
        (0.98, (0.1, 0.12, 0.08), None, HIGHER),
        (0.02, (0.9, 0.88, 0.91), None, LOWER),
        (3.0, (50.0, 50.0, 3.0), None, LOWER),
        (0.1, (0.12, 0.08, 0.1), HIGHER, HIGHER),
        (0.98, (0.1, 0.12), HIGHER, HIGHER),
        (0.5, (), LOWER, LOWER),
    ],
    ids=["accuracy", "error rate", "most", "declared, at chance", "declared", "nothing could be damaged"],
)
def test_which_values_are_better(
    original: float, damaged: tuple[float, ...], declared: Direction | None, better: Direction
) -> None:
    found = judged(original, damaged, declared)
    assert (found.better, found.problem) == (better, "")


@pytest.mark.parametrize(
    ("original", "damaged", "declared", "problem"),
    [
        (0.5, (0.5, 0.5), None, "it is 0.5 whether or not"),
        (0.5, (0.5, 0.5), HIGHER, "it is 0.5 whether or not"),
        (0.02, (0.9, 0.8), HIGHER, "it improves with damage, from 0.02 to between 0.8 and 0.9"),
        (0.02, (0.9, 0.9), HIGHER, "Declare better='lower'"),
        (0.9, (0.1, 0.1), LOWER, "it improves with damage, from 0.9 to 0.1"),
        (0.1, (0.12, 0.08), None, "no better than chance"),
        (0.0, (0.0, 0.0, 0.1), None, "Declare which of its values are"),
        (0.5, (), None, "could not be damaged"),
    ],
)
def test_a_metric_that_cannot_judge_is_told_as_what_it_is(
    original: float, damaged: tuple[float, ...], declared: Direction | None, problem: str
) -> None:
    assert problem in judged(original, damaged, declared).problem


def test_a_bound_is_met_by_what_equals_it_as_values_round() -> None:
    assert within(1.0, 0.95, HIGHER, 0.05)
    assert within(1.0, float(np.float32(0.95)), HIGHER, 0.05)
    assert within(0.0, float(np.float32(0.05)), LOWER, 0.05)
    assert within(100.0, 99.9, HIGHER, 0.1)
    assert not within(1.0, 0.9499, HIGHER, 0.05)
    assert not within(0.0, 0.0501, LOWER, 0.05)


def test_a_drop_of_nothing_allows_no_rounding() -> None:
    assert within(1.0, 1.0, HIGHER, 0.0)
    assert not within(1.0, float(np.nextafter(np.float32(1), np.float32(0))), HIGHER, 0.0)


@pytest.mark.parametrize("metric", [math.nan, math.inf])
def test_what_is_not_a_number_is_not_within(metric: float) -> None:
    assert not within(0.5, metric, LOWER, 1.0)
    assert not within(0.5, -metric, HIGHER, 1.0)


@given(
    total=st.integers(1, 5000),
    right=st.integers(0, 5000),
    lost=st.integers(0, 5000),
    allowed=st.integers(1, 5000),
    better=st.sampled_from(Direction),
    single=st.booleans(),
)
def test_counts_of_samples_are_compared_as_counts(
    total: int, right: int, lost: int, allowed: int, better: Direction, single: bool
) -> None:
    """Accuracies are counts over a count: what is lost is compared exactly, in float32 as well."""
    right, allowed = right % (total + 1), allowed % (total + 1) or 1
    lost %= right + 1
    kind = np.float32 if single else np.float64
    before, now = float(kind(right / total)), float(kind((right - lost) / total))
    if better is LOWER:
        before, now = float(kind(1 - right / total)), float(kind(1 - (right - lost) / total))
    assert within(before, now, better, allowed / total) is (lost <= allowed)


@given(
    original=st.floats(-1e3, 1e3),
    metric=st.floats(-1e3, 1e3),
    max_drop=st.floats(0, 10),
    better=st.sampled_from(Direction),
)
def test_what_is_shown_agrees_with_the_answer(
    original: float, metric: float, max_drop: float, better: Direction
) -> None:
    before, now = map(float, shown(original, metric, better, max_drop))
    assert within(before, now, better, max_drop) is within(original, metric, better, max_drop)


def test_a_drop_of_either_direction() -> None:
    assert drop(0.75, 0.5, HIGHER) == 0.25
    assert drop(0.25, 0.5, LOWER) == 0.25
    assert drop(0.5, 0.75, HIGHER) == -0.25
