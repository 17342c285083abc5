"""A slice of ``benchmarks/right.py``: drawn modules through engines, asked for what no sample shows."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from togi.techniques import technique

ONCE_WRONG = (100, 109, 166)
"""An exact quotient as an integer, a division of large integers, and one that roundings of the original decide."""
OTHERS = (23, 57, 141)
CALLS = 200


@pytest.fixture
def right(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    return importlib.import_module("benchmarks.right")


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "torchscript"])
@pytest.mark.parametrize("seed", [*ONCE_WRONG, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in OTHERS)])
def test_no_call_is_answered_wrongly(right, seed, engine):
    if any(package.missing() for package in technique(engine).packages):
        pytest.skip(f"{engine} is not installed")
    row = right.answers(seed, engine, CALLS)
    assert not row["end"].startswith("wrong"), row
    assert row["end"].split(":")[0] in ("right", "refused", "found wrong")
