"""Where the subject hangs, each command that loads one ends by the time that follows from its own time limit."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.study.made_artifacts import made_artifact
from togi import api
from togi.claims.technique import prove_technique
from togi.core.errors import TogiError
from togi.core.records import Facts, Outcome, Study, Trial
from togi.machine.describe import machine
from togi.machine.limits import descendants
from togi.techniques import recipe, technique
from togi.worker import deadline

pytestmark = [pytest.mark.hangs, pytest.mark.starts_servers]

WHOLE_S = 25.0
LINEAR = """
import torch
def subject():
    torch.manual_seed(0)
    return torch.nn.Linear(16, 4), torch.randn(8, 16)
"""


class Given:
    """A subject in which it hangs, one that is well and takes the same inputs, and an artifact of that."""

    def __init__(self, folder: Path) -> None:
        self.hanging, self.healthy = (f"{folder / name}.py:subject" for name in ("hanging_family", "linear"))
        self.artifact, self.out = folder / "linear.togi", folder / "out"


@pytest.fixture
def given_files(tmp_path: Path) -> Given:
    shutil.copy(Path(__file__).parent / "hanging" / "hanging_family.py", tmp_path)
    (tmp_path / "linear.py").write_text(LINEAR, encoding="utf-8")
    given = Given(tmp_path)
    made_artifact(given.artifact, given.healthy)
    return given


def bench(given: Given) -> str:
    found = api.bench(given.healthy, given.hanging, time_limit_s=2)
    assert [each.outcome for each in found.contestants[1:]] == [Outcome.TIMED_OUT]
    return found.contestants[1].reason


def verify(given: Given) -> str:
    return api.verify(given.artifact, subject=given.hanging, time_limit_s=2).verdict


def fit(given: Given) -> Any:
    return api.fit(given.hanging, memory="1GiB", time_limit_s=2)


def repro(given: Given) -> Any:
    chosen = recipe(no_grad={})
    facts = Facts(machine=machine(), module_class="Slow")
    trial = Trial(recipe=chosen, outcome=Outcome.OK)
    study = Study(id="1", subject=given.hanging, facts=facts, trials=(trial,))
    return api.repro(study, chosen.label, given.out)


def explain(given: Given) -> str:
    proof = prove_technique(technique("no_grad"), on=given.hanging, device="cpu", seed=0, on_phase=lambda _: None)
    return proof.sentence


@pytest.mark.parametrize("place", ["factory", "factory:holds_gil", "original", "original:holds_gil"])
@pytest.mark.parametrize("command", [bench, verify, fit, repro, explain])
def test_a_command_ends_in_time_and_says_what_it_waited_for(
    command: Callable[[Given], Any], place: str, given_files: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED", place)
    monkeypatch.setattr(deadline, "_LEAST_WHOLE_S", WHOLE_S)
    monkeypatch.setattr("togi.claims.technique.LONGEST_S", 4.0)
    monkeypatch.setattr("togi.study.repro._LONGEST_S", WHOLE_S)
    before, began = set(descendants(os.getpid())), time.monotonic()
    try:
        said = command(given_files)
    except TogiError as error:
        said = str(error)
    assert time.monotonic() - began < WHOLE_S + 10.0
    assert "still" in said or "time limit" in said or "took more than" in said
    assert "Traceback" not in said
    time.sleep(0.2)
    assert set(descendants(os.getpid())) <= before
