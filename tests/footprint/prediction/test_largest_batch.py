"""The search finds the largest batch in few runs, whatever the need's shape."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from togi.footprint.prediction.predict import halvings, largest_batch


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 10**10), st.integers(1, 4096))
def test_the_largest_batch_of_a_linear_need(fixed: int, slope: int, limit: int, start: int) -> None:
    runs: list[int] = []

    def need(batch: int) -> int:
        runs.append(batch)
        return fixed + slope * batch

    found = largest_batch(need, limit, start=start)
    exact = max(0, (limit - fixed) // slope)
    if found < 1 << 22:
        assert found == exact
    assert found == 0 or need(found) <= limit
    assert len(runs) <= 18


@given(st.integers(1, 500), st.integers(1, 64))
def test_the_largest_batch_of_a_need_with_steps_and_curves(limit: int, width: int) -> None:
    def need(batch: int) -> int:
        return math.ceil(batch / width) * width + int(batch**1.5) // 50

    found = largest_batch(need, limit)
    assert found == 0 or need(found) <= limit
    assert found == 0 or need(max(found + 1, found + found // 4)) > limit


def test_batches_are_halved_down_to_one() -> None:
    assert halvings(13) == [13, 6, 3, 1]
    assert halvings(1) == [1]
