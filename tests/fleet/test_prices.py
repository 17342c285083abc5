from __future__ import annotations

from pathlib import Path

import pytest

from togi.core.errors import FleetError
from togi.fleet.prices import read_prices


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "prices.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_prices_are_read_in_their_order(tmp_path: Path) -> None:
    prices = read_prices(written(tmp_path, 'currency = "€"\n[per_hour]\nlarge = 2\n"c7i.large" = 0.085\nown = 0\n'))
    assert prices.currency == "€"
    assert list(prices.per_hour.items()) == [("large", 2.0), ("c7i.large", 0.085), ("own", 0.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[per_hour]\na = 1\n", "currency: Field required"),
        ('currency = "USD"\n', "per_hour: Field required"),
        ('currency = "USD"\n[per_hour]\n', "per_hour = {}"),
        ('currency = "USD"\n[per_hour]\na = 1\nb = -0.5\n', "per_hour.b = -0.5"),
        ('currency = "USD"\n[per_hour]\na = nan\n', "per_hour.a = nan"),
        ('currency = "USD"\n[per_hour]\na = inf\n', "per_hour.a = inf"),
        ('currency = "USD"\n[per_hour]\na = "1"\n', "per_hour.a = '1'"),
        ('currency = "USD"\n[per_hour]\na = true\n', "per_hour.a = True"),
        ('currency = "USD"\n[per_hour]\n"../a" = 1\n', "per_hour.../a"),
        ('currency = "USD"\nper_day = 3\n[per_hour]\na = 1\n', "per_day = 3"),
        ('currency = "USD"\n[per_hour]\na = \n', "line 3"),
    ],
)
def test_what_is_not_a_price_is_reported_with_its_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(FleetError) as error:
        read_prices(file)
    assert str(file) in str(error.value)
    assert said in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"none\.toml"):
        read_prices(tmp_path / "none.toml")
