"""The text that is read from scores, and by how many characters it is wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from togi.verify.characters import edits, error_rate, read

TEXTS = st.lists(st.integers(1, 4), max_size=8)


@pytest.mark.parametrize(
    ("steps", "text"),
    [([1, 1, 2], [1, 2]), ([1, 0, 1], [1, 1]), ([0, 0], []), ([0, 3, 3, 0, 3, 2], [3, 3, 2]), ([], [])],
)
def test_repeats_are_read_once_and_blanks_not(steps: list[int], text: list[int]) -> None:
    assert read(torch.eye(5)[steps]) == text


@pytest.mark.parametrize(
    ("one", "other", "count"), [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "abc", 0), ("ab", "ba", 2)]
)
def test_known_distances(one: str, other: str, count: int) -> None:
    assert edits(list(map(ord, one)), list(map(ord, other))) == count


@given(TEXTS, TEXTS, TEXTS)
def test_it_is_a_distance(one: list[int], other: list[int], third: list[int]) -> None:
    assert (edits(one, other) == 0) == (one == other)
    assert edits(one, other) == edits(other, one)
    assert edits(one, other) <= edits(one, third) + edits(third, other)
    assert abs(len(one) - len(other)) <= edits(one, other) <= max(len(one), len(other))


def test_an_error_rate_is_a_share_of_the_right_text_and_at_most_one() -> None:
    assert error_rate([1, 2, 4], [1, 2, 3]) == pytest.approx(1 / 3)
    assert error_rate([1] * 9, [2]) == error_rate([1], []) == 1.0
    assert error_rate([], []) == 0.0
