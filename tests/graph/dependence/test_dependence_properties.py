"""No program of random operators is taken for independent whose rows depend on each other."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.graph.dependence.batch_programs import NAMES, Step, batches, depends, program
from togi.graph.dependence.any_size import rows_apart_at_any_size
from togi.graph.dependence.proof import rows_apart

PIECES = (3, 2, 1)
STEP = st.tuples(st.sampled_from(NAMES), st.integers(0, 999))


def _runs(steps: list[Step]) -> bool:
    try:
        for count in (6, *PIECES):
            program(steps)(batches()[0][:count])
    except (RuntimeError, IndexError, ValueError):
        return False
    return True


def _check(steps: list[Step]) -> bool:
    """Whether it was shown to be independent, which it then is."""
    found = rows_apart(program(steps), batches()[:1], [0], PIECES)
    if not found.reason:
        assert depends(program(steps), PIECES, found.along[0]) == "", steps
    return not found.reason


@given(st.lists(STEP, min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_what_is_shown_to_be_independent_is(steps: list[Step]) -> None:
    assume(_runs(steps))
    _check(steps)


@given(st.lists(STEP, min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_what_is_shown_for_any_number_of_rows_is(steps: list[Step]) -> None:
    assume(_runs(steps))
    found = rows_apart_at_any_size(program(steps), batches()[:1], [0], {(0, 0): ((0, 0), 0)})
    if not found.reason:
        assert depends(program(steps), (4, 3, 2), found.along[0]) == "", steps


@pytest.mark.thorough
def test_every_operator_of_the_table_by_itself() -> None:
    """And most of them are shown: 484 of the 500 that are independent, of 802 that run (2026-11-25)."""
    cases = [[(name, number)] for name in NAMES for number in range(8)]
    running = [steps for steps in cases if _runs(steps)]
    assert sum(map(_check, running)) > 450


@pytest.mark.thorough
def test_longer_programs_are_judged_right() -> None:
    draw = random.Random(1)
    for _ in range(300):
        steps = [(draw.choice(NAMES), draw.randrange(1000)) for _ in range(draw.randint(2, 7))]
        if _runs(steps):
            _check(steps)
