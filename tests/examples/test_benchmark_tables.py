"""The tables of benchmarks/README.md are what is drawn from the figures in benchmarks/data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from benchmarks import peers, tables

ROOT = Path(__file__).parents[2]


def test_tables_are_up_to_date() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert page == tables.with_tables(page), "run: python -m benchmarks.tables"


def test_the_table_of_peers_shows_tuning_time_and_the_ratio_of_two_equal_recipes() -> None:
    raced = {"eager_ms": 20.0, "togi_ms": 10.0, "over_eager": 2.0, "ratio": (1.0, 0.9, 1.1), "limit_ms": 5.0}
    timed = {"tune_s": 112.0, "time_limit_s": 100.0, "twins": {peers.LOADED: (1.01, 0.99, 1.03)}}
    before = asdict(peers.Row("of before", **raced, measured="here"))
    for field in timed:
        del before[field]
    table = peers.table([before, asdict(peers.Row("timed", **raced, **timed, measured="here"))])
    first, second = (line.split(" | ") for line in table.splitlines()[2:4])
    at = table.splitlines()[0].split(" | ").index("tuned in (s)")
    assert (first[at], second[at], second[at + 1]) == ("-", "112 of 100", "50%")
    assert "The time limit was kept within 10 % on 0 of 1, at most 112% of it." in table
    assert f"The chosen recipe {peers.LOADED}: 1.010 to 1.010 x on 1." in table


def test_the_limit_is_that_of_the_best_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "product_rates", lambda: {"MKL": 1e11, "oneDNN 1x1": 2e11})
    monkeypatch.setattr(peers, "fastest_s", lambda _work: 0.5)
    assert peers.machine_limits() == (2e11, 2 * 4 * (64 << 20) / 0.5)


def test_products_are_counted_by_their_multiplications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "fastest_s", lambda _work: 1.0)
    pixels = 512 * 56 * 56
    assert peers.product_rates() == {
        "MKL": 2 * 2048**3,
        "oneDNN 1x1": 2 * pixels * 512,
        "oneDNN 3x3": 2 * pixels * 512 * 9,
    }
