from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from togi.core.errors import BudgetError, QuantityError, TogiError
from togi.core.printable import printable
from togi.core.quantities import (
    bounds,
    count,
    first_line,
    last_line,
    milliseconds,
    parse_counts,
    parse_duration,
    parse_share,
    parse_size,
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
    ("text", "count"),
    [("8GiB", 8 * 1024**3), ("500MB", 500_000_000), ("2g", 2 * 1024**3), ("1.5 kb", 1500), ("1024", 1024), ("7B", 7)],
)
def test_sizes_are_parsed(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("given", ["1,2, 8,2", [1, 2, 8], (1, 2, 8, 1)])
def test_counts_are_parsed_sorted_and_without_repetition(given: str | list[int]) -> None:
    assert parse_counts(given) == (1, 2, 8)


@pytest.mark.parametrize("given", ["", "1,,2", "0", "-1", "1;2", "2.5", [], [1, True], [1.0], ["x"], 8, None])
def test_bad_counts_are_refused_with_an_example(given: object) -> None:
    with pytest.raises(QuantityError, match=r"sizes=.*write 1,2,4,8"):
        parse_counts(given, "sizes")  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("90s", 90), ("90", 90), ("1h30m", 5400), ("250ms", 0.25)])
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "share"), [("1e-2", 0.01), ("1%", 0.01), ("0", 0.0), (".5", 0.5)])
def test_shares_are_parsed(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", "GiB", "8GiBB", "-1GB", "0", "1e9", "eight", "8 9"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "m", "-5m", "0s", "5x", "1h30", "5 minutes and", "1,5m"])
def test_bad_durations_are_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "one", "200%", "1.5"])
def test_bad_shares_are_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_share(text)


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused_with_itself_in_the_message(text: str) -> None:
    for parse in (parse_size, parse_duration, parse_share):
        message = ""
        try:
            assert parse(text) >= 0
        except QuantityError as error:
            message = str(error)
        assert not message or printable(text) in message


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, math.inf, math.nan, b"8GiB", [8]])
def test_numbers_and_objects_that_are_not_a_size(value: object) -> None:
    with pytest.raises(BudgetError, match="memory="):
        parse_size(value, "memory")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1.5, True, None, math.nan, [8]])
def test_numbers_and_objects_that_are_not_a_duration(value: object) -> None:
    with pytest.raises(TogiError, match="time_limit_s="):
        parse_duration(value, "time_limit_s")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.1, 1.01, True, None, math.nan, [8]])
def test_numbers_and_objects_that_are_not_a_share(value: object) -> None:
    with pytest.raises(ValueError, match="max_error="):
        parse_share(value, "max_error")  # type: ignore[arg-type]


def test_numbers_are_taken_as_they_are() -> None:
    assert (parse_size(1 << 20), parse_size(2e9)) == (1 << 20, 2 * 10**9)
    assert (parse_duration(1.5), parse_share(0.25)) == (1.5, 0.25)


def test_first_line_of_an_error() -> None:
    assert first_line(ValueError("\n  what happened\nand more")) == "what happened"
    assert first_line(ValueError("\x1b[96mwhat\x1b[0m happened")) == "what happened"
    assert first_line(KeyError()) == "KeyError"
    assert first_line("") == ""
    assert last_line("a warning\n  \x1b[31mwhy it failed\x1b[0m \n\n") == "why it failed"
    assert (last_line(KeyError()), last_line("")) == ("KeyError", "")
    assert len(first_line(RuntimeError("x" * 1000))) == 300


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.04213, "0.0421"), (12.34, "12.3"), (1234.5, "1,234"), (3e-9, "3.00e-09"), (float("nan"), "nan")],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


def test_quantities_are_written_with_their_units() -> None:
    assert [milliseconds(v) for v in (0.5, 12.3, 12_345)] == ["0.500 ms", "12.3 ms", "12.3 s"]
    assert [seconds(v) for v in (0.31, 42, 187, 3723)] == ["0.31 s", "42 s", "3:07", "1:02:03"]
    assert [size(v) for v in (0, 512, 1536, 98.4 * 2**20)] == ["0 B", "512 B", "1.50 KiB", "98.4 MiB"]
    assert (times(2.3149), relative(3.1e-7), percent(0.031), percent(0.5)) == ("2.31x", "3.1e-07", "3.1 %", "50 %")
    assert [count(v) for v in (12, 533_000, 790_000_000)] == ["12.0", "533 k", "790 M"]
    assert (plural(1, "trial"), plural(2, "trial")) == ("1 trial", "2 trials")


def test_bounds_have_the_decimals_of_the_median() -> None:
    assert bounds(Interval(median=2.0, low=1.976, high=2.084)) == "1.98-2.08"
    assert bounds(Interval(median=134.2, low=131.9, high=137.0)) == "132-137"
