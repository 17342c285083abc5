"""Gates: one answer, whatever form it is shown in, and no two answers that contradict each other."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render.made_up_intervals import intervals, shares
from togi.core.records import Interval
from togi.decide.faster import BETWEEN_PROCESSES, WITHIN_PROCESS, Speed, inverse
from togi.decide.gate import Answer, Case, below, exit_code, faster_than, slower_than

WORSE = [Answer.PASSED, Answer.UNDECIDED, Answer.FAILED]
"""A gate that forgives less may go from one of them to a later one, never back."""


@given(intervals(), shares, shares, st.sampled_from([1, 2]))
def test_a_gate_that_forgives_more_never_answers_worse(
    found: Interval, share: float, other: float, comparisons: int
) -> None:
    loose, strict = (slower_than(each, found, comparisons=comparisons) for each in sorted([share, other], reverse=True))
    assert WORSE.index(loose) <= WORSE.index(strict)


@given(intervals(), shares)
def test_the_gate_and_the_table_agree(found: Interval, share: float) -> None:
    answer, speed = slower_than(share, found), BETWEEN_PROCESSES.speed(found)
    if answer is Answer.FAILED:
        assert speed is Speed.SLOWER
        assert found.median < 1 / (1 + share)
    if answer is Answer.PASSED:
        assert found.median >= 1 / (1 + max(share, 0.01) + 0.03)
    if speed in (Speed.FASTER, Speed.SAME) and share >= 0.01:
        assert answer is Answer.PASSED


@given(intervals(), shares, st.sampled_from([0, 1, 2]))
def test_being_faster_is_the_gate_of_being_slower_seen_from_the_other_side(
    found: Interval, share: float, comparisons: int
) -> None:
    """What is faster by a share makes the other one slower by it, and neither is both. At the edge rounding decides."""
    faster, *near = (faster_than(share, scaled(found, by), comparisons=comparisons) for by in (1, 1 - 1e-9, 1 + 1e-9))
    if near != [faster, faster]:
        return
    other = slower_than(share, inverse(found), comparisons=comparisons)
    assert faster is {Answer.PASSED: Answer.FAILED, Answer.FAILED: Answer.PASSED}.get(other, Answer.UNDECIDED)
    if faster is Answer.PASSED:
        assert slower_than(share, found, comparisons=comparisons) is Answer.PASSED


def scaled(found: Interval, by: float) -> Interval:
    return Interval(median=found.median * by, low=found.low * by, high=found.high * by)


def test_within_a_process_the_band_is_the_share_alone() -> None:
    found = Interval(median=1.06, low=1.055, high=1.065)
    assert [faster_than(0.05, found, comparisons=count) for count in (0, 1)] == [Answer.PASSED, Answer.FAILED]
    assert WITHIN_PROCESS.faster(found)
    assert faster_than(0.07, found, comparisons=0) is Answer.FAILED
    assert faster_than(0.06, found, comparisons=0) is Answer.UNDECIDED


@given(intervals())
def test_what_is_out_by_orders_of_magnitude_is_decided(found: Interval) -> None:
    nearest = found.low if found.median > 1 else 1 / found.high if found.high < math.inf else 0.0
    if nearest > 10:
        assert BETWEEN_PROCESSES.speed(found) is (Speed.FASTER if found.median > 1 else Speed.SLOWER)
    if found.high == math.inf and not 1e-3 <= found.median <= 1e3:
        assert BETWEEN_PROCESSES.speed(found) is not Speed.UNCLEAR


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0])
def test_what_is_not_a_measurement_is_undecided(bad: float) -> None:
    for found in (Interval(median=bad, low=bad, high=bad), Interval(median=1, low=bad, high=math.nan)):
        assert slower_than(0.05, found) is Answer.UNDECIDED


def test_a_quantity_with_doubt() -> None:
    assert [below(5, 3, 5), below(5, 5, 6), below(5, 6, 9)] == [Answer.PASSED, Answer.UNDECIDED, Answer.FAILED]


@given(st.lists(st.sampled_from(Answer), min_size=1), st.integers(0, 255))
def test_the_worst_answer_is_the_exit_code(answers: list[Answer], undecided: int) -> None:
    code = exit_code([Case(name="a", said="", answer=answer) for answer in answers], undecided)
    if set(answers) & {Answer.FAILED, Answer.ERROR}:
        assert code == 1
    elif Answer.UNDECIDED in answers:
        assert code == undecided
    else:
        assert code == 0


def test_a_share_in_steps() -> None:
    found = Interval(median=0.447, low=0.380, high=0.597)
    answers = [WORSE.index(slower_than(share / 100, found)) for share in range(0, 101)]
    assert all(one >= other for one, other in pairwise(answers))
    assert answers[5] == answers[50] == WORSE.index(Answer.FAILED)
