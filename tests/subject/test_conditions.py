"""Conditions on sizes: read from text, which may come from a stranger's file, and decided for a call."""

from __future__ import annotations

import pytest
import torch

from togi.subject.conditions import condition, in_words, sizes_in

TENSORS = [torch.empty(2, 12), torch.empty(5)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size(0, 1) <= 12", True),
        ("size(0, 1) < 12", False),
        ("(size(0, 1) % 8) == 0", False),
        ("size(0, 1) // 4 != 3", False),
        ("2*size(1, 0) - 10 >= -1", True),
        ("min(size(0, 0), size(1, 0), 3) == 2 and max(size(0, 0), 9) == 9", True),
        ("size(0, 0) > 2 or not size(1, 0) > 5", True),
        ("size(0, 1) % (size(1, 0) - 5) == 0", False),
        ("float(size(0, 1)) ** 0.5 <= 3.4", False),
        ("(size(0, 1) & (-1) + size(0, 1)) != 0", True),
        ("math.ceil(size(1, 0) / 2) == 3 and math.trunc(0.5*size(1, 0)) == 2", True),
        ("round(abs(size(1, 0) - 12) / 2) == 4", True),
        ("math.sqrt(size(0, 0) - 3) >= 0", False),
        ("2 ** size(0, 1) == 4096", True),
    ],
)
def test_it_is_decided_by_the_sizes(text: str, expected: bool) -> None:
    assert condition(text)(TENSORS) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "size(0, 1)",
        "size(0, 1) <= x",
        "size(0) <= 1",
        "size(0, size(0, 0)) <= 1",
        "__import__('os').system('true') == 0",
        "().__class__ == 1",
        "math.factorial(size(0, 1)) <= 1",
        "size(0, 1) << 2 <= 1",
        "round(size(0, 1), ndigits=2) <= 1",
        "1 < size(0, 1) < 20",
        "size(0, 1) <= 1; 1",
        "(lambda: 1)() == 1",
        "size(0, 1) <= " + "-" * 30_000 + "1",
        "size(0, 1) <= 1" + " " * 30_000,
    ],
)
def test_nothing_else_is_a_condition(text: str) -> None:
    with pytest.raises(ValueError, match="is not a condition on sizes"):
        condition(text)


@pytest.mark.parametrize(
    "text",
    ["2 ** (2 ** size(0, 1)) > 0", "9**9**9 > 1", "((((size(0, 1)**99)**99)**99)**99) > 0", "1e300 * 1e300 > 0"],
)
def test_what_is_too_large_to_compute_is_not_met(text: str) -> None:
    assert condition(text)(TENSORS) is False


def test_what_it_says_of_which_sizes() -> None:
    text = "(size(0, 1) % 8) == 0 or size(1, 0) <= max(size(0, 1), 4)"
    assert set(sizes_in(text)) == {(0, 1), (1, 0)}
    assert in_words(text, ["x", "cache.keys"]) == ("x.shape[1] % 8 == 0 or cache.keys.shape[0] <= max(x.shape[1], 4)")
