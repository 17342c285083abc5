"""``togi fleet`` hands the settings of its study to each machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from togi.cli.app import run
from togi.core.errors import FleetError
from togi.core.settings import Settings
from togi.fleet import run as fleet_run


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Options of ``togi tune`` that went to the machines."""
    options: list[list[str]] = []

    def run_fleet(_subject: str, _prices: Path, given: list[str], **_: Any) -> Any:
        options.append(given)
        raise FleetError("no machine here")

    monkeypatch.setattr(fleet_run, "run_fleet", run_fleet)
    return options


def fleet(*options: str) -> int:
    return run(["fleet", "m.py:f", "--cluster", "local", "--prices", "prices.toml", *options])


def test_settings_go_to_each_machine(shipped: list[list[str]]) -> None:
    fleet("--effort", "quick", "--max-latency", "20ms", "--allow", "bf16", "--max-error", "1e-5", "--seed", "-1")
    chosen = Settings(effort="quick", max_latency_s=0.02, allow=("bf16",), max_error=1e-5, seed=-1)  # type: ignore[arg-type]
    assert shipped == [chosen.arguments()]


def test_wrong_settings_are_refused_before_a_machine_is_asked(
    shipped: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet("--allow", "bf16") == 2
    assert fleet("--only", "no_grda") == 2
    said = capsys.readouterr().err
    assert "needs a bound" in said
    assert "did you mean 'no_grad'" in said
    assert shipped == []


def test_a_fleet_compares_single_calls(shipped: list[list[str]]) -> None:
    assert fleet("--objective", "throughput") == 2
    assert shipped == []
