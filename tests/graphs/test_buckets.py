"""The choice of buckets, against every other choice and against the plain dynamic programme."""

from __future__ import annotations

import itertools
from collections import Counter
from pydoc_data.topics import topics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from togi.graphs.buckets import choose_buckets, padding

HISTOGRAMS = st.dictionaries(st.integers(1, 60), st.integers(1, 50), min_size=1, max_size=9)


@given(HISTOGRAMS, st.integers(1, 10))
def test_no_other_buckets_pad_less(calls: dict[int, int], count: int) -> None:
    found = choose_buckets(calls, count)
    assert list(found) == sorted(set(found))
    assert len(found) <= count
    assert found[-1] == max(calls), "every call is covered"
    largest = max(calls)
    others = itertools.combinations(sorted(set(calls) - {largest}), min(count, len(calls)) - 1)
    assert padding(calls, found) == min(padding(calls, (*other, largest)) for other in others)


@given(HISTOGRAMS, st.integers(1, 8))
def test_buckets_between_the_sizes_that_occur_would_not_help(calls: dict[int, int], bucket: int) -> None:
    two = choose_buckets(calls, 2)
    assert padding(calls, two) <= padding(calls, tuple(sorted({bucket, max(calls)})))


def least_padding(calls: dict[int, int], count: int) -> int:
    """The programme as it is defined: every start of every last bucket."""
    sizes = sorted(calls)

    def padded(start: int, end: int) -> int:
        return sum(calls[size] * (sizes[end - 1] - size) for size in sizes[start:end])

    costs = [[padded(start, end) for start in range(end)] for end in range(1, len(sizes) + 1)]
    best = [row[0] for row in costs]
    for _ in range(count - 1):
        best = [min([row[0], *(best[start - 1] + row[start] for start in range(1, len(row)))]) for row in costs]
    return best[-1]


def text_lengths() -> Counter[int]:
    """Words of the paragraphs of Python's own documentation."""
    return Counter(len(part.split()) for text in topics.values() for part in text.split("\n\n") if part.strip())


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_lengths_of_a_text_are_padded_as_little_as_can_be(count: int) -> None:
    calls = dict(sorted(text_lengths().items())[:90])
    assert padding(calls, choose_buckets(calls, count)) == least_padding(calls, count)


def test_padding_counts_what_a_bucket_holds() -> None:
    assert padding({3: 2, 5: 1, 9: 7}, (4, 8)) == 2 * 1 + 3
