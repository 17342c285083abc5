from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from togi.core.parse_quantities import parse_duration, parse_share, parse_size


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GiB", 8 * 1024**3), ("500MB", 500_000_000), ("2g", 2 * 1024**3), ("1.5 kb", 1500), ("1024", 1024), ("7B", 7)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("90s", 90), ("90", 90), ("1h30m", 5400), ("250ms", 0.25)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "share"), [("1e-2", 0.01), ("1%", 0.01), ("0", 0.0), (".5", 0.5)])
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", "GiB", "8GiBB", "-1GB", "0", "1e9", "eight", "8 9"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "m", "-5m", "0s", "5x", "1h30", "5 minutes and", "1,5m"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "one"])
def test_what_is_not_a_share(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_share(text)


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused_with_itself_in_the_message(text: str) -> None:
    for parse in (parse_size, parse_duration, parse_share):
        message = ""
        try:
            assert parse(text) >= 0
        except typer.BadParameter as error:
            message = str(error.message)
        assert not message or text in message
