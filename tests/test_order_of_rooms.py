"""Imports go downward: the contract in pyproject.toml, without an exception."""

from __future__ import annotations

import tomllib
from pathlib import Path

import togi

ROOT = Path(__file__).parents[1]


def contract() -> dict[str, object]:
    (found,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    return dict(found)


def test_every_room_stands_in_the_order() -> None:
    layers = contract()["layers"]
    assert isinstance(layers, list)
    source = Path(togi.__file__).parent
    rooms = {f"togi.{path.parent.name}" for path in source.glob("*/__init__.py")} | {"togi.api"}
    assert rooms == set(layers)


def test_the_order_has_no_exceptions() -> None:
    assert set(contract()) == {"name", "type", "layers"}
