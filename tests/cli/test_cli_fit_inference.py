"""``togi fit --inference``: the plan is written, said, and applies to a live module."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import togi
from togi.cli.app import run
from togi.core.errors import TogiError


@pytest.mark.usefixtures("in_this_process")
def test_plan_is_written_and_applies(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    assert run(["fit", f"{file}:wide", "--inference", "--memory", "3MiB", "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Fits 3.00 MiB: peak" in said
    assert "a pass takes" in said
    assert "1 output equal" in said
    assert "(whole module)" in said
    plan = togi.Plan.load(out)
    module, data = nn.Sequential(nn.Linear(16, 2048), nn.GELU(), nn.Linear(2048, 16)).eval(), torch.randn(5, 70, 16)
    with torch.no_grad():
        whole = module(data)
        torch.testing.assert_close(plan.apply(module)(data), whole)
    plan.remove()
    assert "forward" not in vars(module)


@pytest.mark.usefixtures("in_this_process")
def test_json_and_exit_code_when_nothing_fits(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", f"{file}:wide", "--inference", "--memory", "1KiB", "--json", "--time-limit", "4s"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is False
    assert found["train"] is False
    assert found["plan"]["policies"] == []


@pytest.mark.usefixtures("in_this_process")
def test_from_python_with_a_live_module() -> None:
    module = nn.Sequential(nn.Linear(16, 512), nn.GELU(), nn.Linear(512, 16)).eval()
    found = togi.fit(module, torch.randn(64, 16), memory="1GiB", train=False)
    assert found.fits
    assert found.proof.exact
    assert not found.plan.chunks
    with pytest.raises(TogiError, match="no part in inference"):
        togi.fit(module, torch.randn(64, 16), memory="1GiB", train=False, allow_approximate=True)


def test_an_optimizer_has_no_part_in_it(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", f"{file}:wide", "--inference", "--memory", "1GiB", "--optimizer", "adam"]) == 2
    assert "no part in inference" in " ".join(capsys.readouterr().err.split())
