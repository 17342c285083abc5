"""The tables of benchmarks/README.md are what is drawn from the figures in benchmarks/data."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import tables  # noqa: E402


def test_tables_are_up_to_date() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert page == tables.with_tables(page), "run: python -m benchmarks.tables"
