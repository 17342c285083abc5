"""The error of a text that is read from scores: by how many characters it differs from another."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

BLANK = 0
"""The class that says "no character here". As torch and PaddlePaddle number them; others go by a metric of their own.
"""


def read(scores: Tensor) -> list[int]:
    """The text in ``(steps, classes)``: at each step the class of the largest score, a repeated one once (CTC)."""
    best = scores.argmax(-1).tolist()
    return [kind for step, kind in enumerate(best) if kind != BLANK and (step == 0 or kind != best[step - 1])]


def error_rate(text: Sequence[int], right: Sequence[int]) -> float:
    """Characters to insert, delete and replace, as a share of those of the right text; at most 1."""
    return min(1.0, edits(text, right) / max(1, len(right)))


def edits(one: Sequence[int], other: Sequence[int]) -> int:
    """The edit distance (Levenshtein)."""
    above = list(range(len(other) + 1))
    for row, character in enumerate(one, start=1):
        left = [row]
        for column, another in enumerate(other, start=1):
            replaced = above[column - 1] + (character != another)
            left.append(min(replaced, above[column] + 1, left[-1] + 1))
        above = left
    return above[-1]
