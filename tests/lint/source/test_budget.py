"""A file has so many steps: what takes more is checked in part, the same part each time, and a note says so."""

from __future__ import annotations

import time

import pytest

from togi.lint.check_file import check_bytes
from togi.lint.source import budget

CALL = "torch.nn.init.xavier_uniform(w)\n"


def loops(levels: int) -> str:
    """What the innermost loop learns takes many turns to arrive, so that each loop is interpreted three times."""
    assignments = "".join(f" a{n} = {n}\n" for n in range(40))
    heads = "".join(f" {' ' * level}for x{level} in y:\n" for level in range(levels))
    moved = "".join(f" {' ' * levels}a{n} = a{n + 1}\n" for n in range(39))
    last = f" {' ' * levels}a39 = torch.ones(1)\n a0.item()\n"
    return f"import torch\n{CALL}def f(x, y):\n{assignments}{heads}{moved}{last}"


def test_it_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_STEPS", 50_000)
    began = time.process_time()
    first, second = (check_bytes(loops(18).encode(), "x.py") for _ in range(2))
    assert time.process_time() - began < 20
    assert first == second
    assert not first.problems
    assert "exclude it if it was generated" in first.notes[0].message
    assert "deprecated-function" in [finding.rule for finding in first.findings]


def test_usual_files_have_enough() -> None:
    report = check_bytes((loops(3) + CALL * 50).encode(), "x.py")
    assert not report.notes
    assert len(report.findings) > 50
