from __future__ import annotations

import pytest

from togi.core.quantities import (
    bounds,
    count,
    milliseconds,
    percent,
    plural,
    relative,
    seconds,
    significant,
    size,
    times,
)
from togi.core.records import Interval


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.04213, "0.0421"), (12.34, "12.3"), (1234.5, "1,234"), (3e-9, "3.00e-09"), (float("nan"), "nan")],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


def test_units() -> None:
    assert [milliseconds(v) for v in (0.5, 12.3, 12_345)] == ["0.500 ms", "12.3 ms", "12.3 s"]
    assert [seconds(v) for v in (0.31, 42, 187, 3723)] == ["0.31 s", "42 s", "3:07", "1:02:03"]
    assert [size(v) for v in (0, 512, 1536, 98.4 * 2**20)] == ["0 B", "512 B", "1.50 KiB", "98.4 MiB"]
    assert (times(2.3149), relative(3.1e-7), percent(0.031), percent(0.5)) == ("2.31x", "3.1e-07", "3.1 %", "50 %")
    assert [count(v) for v in (12, 533_000, 790_000_000)] == ["12.0", "533 k", "790 M"]
    assert (plural(1, "trial"), plural(2, "trial")) == ("1 trial", "2 trials")


def test_bounds_have_the_decimals_of_the_median() -> None:
    assert bounds(Interval(median=2.0, low=1.976, high=2.084)) == "1.98-2.08"
    assert bounds(Interval(median=134.2, low=131.9, high=137.0)) == "132-137"
