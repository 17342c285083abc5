"""Patterns are compared in time that grows with their length, not with the number of ways to fit their stars."""

from __future__ import annotations

import time

import pytest

from togi.lint.globs import glob


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("*a" * 100 + "b", "a" * 250),
        ("**/a/" * 50 + "b", "a/" * 1000 + "c"),
        ("*[a-z]*?" * 50 + "!", "a" * 250),
        ("*a*a*a*a*a*a/" * 20 + "b", ("a" * 200 + "/") * 20 + "c"),
    ],
)
def test_stars_do_not_backtrack(line: str, path: str) -> None:
    pattern = glob(line)
    assert pattern is not None
    began = time.process_time()
    assert not pattern.matches(path, is_folder=False)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("line", ["[", "[a", "a\\", "[z-a]", "/", "!", "!/", "[[:alpha:]"])
def test_malformed_patterns_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"it matches nothing|not closed|bad character"):
        glob(line)


@pytest.mark.parametrize("line", ["", "   ", "# x"])
def test_comments_and_empty_lines_are_not_patterns(line: str) -> None:
    assert glob(line) is None
