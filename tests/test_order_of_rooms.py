"""Imports go downward, and checking source needs only core: the contracts in pyproject.toml, without exceptions."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import togi

ROOT = Path(__file__).parents[1]
SOURCE = Path(togi.__file__).parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]


def contract(type: str) -> dict[str, Any]:
    (found,) = (each for each in CONTRACTS if each["type"] == type)
    return dict(found)


def test_every_room_stands_in_the_order() -> None:
    rooms = {f"togi.{path.parent.name}" for path in SOURCE.glob("*/__init__.py")} | {"togi.pytest_plugin"}
    assert rooms == set(contract("layers")["layers"])


def test_every_part_of_the_linter_stands_on_one_side_of_the_contract() -> None:
    """Either it serves checking source, or it looks at a module or a run; and all rooms but core are out of bounds."""
    found = contract("forbidden")
    parts = {f"togi.lint.{path.stem}" for path in (SOURCE / "lint").iterdir() if not path.name.startswith("__")}
    parts |= {f"togi.lint.rules.{kind}" for kind in ("source", "module", "trace")}
    forbidden = set(found["forbidden_modules"])
    rooms = set(contract("layers")["layers"]) - {"togi.lint", "togi.core"}
    assert set(found["source_modules"]) | (forbidden - rooms) == parts - {"togi.lint.rules"}
    assert rooms <= forbidden
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    checked = makefile.partition("CHECKS_SOURCE :=")[2].partition("\n\n")[0]
    assert all(name.removeprefix("togi.lint.") in checked for name in found["source_modules"]), "types for Windows"


def test_the_contracts_have_no_exceptions() -> None:
    assert set(contract("layers")) == {"name", "type", "layers"}
    assert set(contract("forbidden")) == {"name", "type", "source_modules", "forbidden_modules"}


def test_a_class_name_stands_for_one_thing() -> None:
    named: dict[str, list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef):
                named[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    assert not {name: files for name, files in named.items() if len(files) > 1}
