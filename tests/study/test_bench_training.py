"""``togi bench --train``: training steps and records of them take turns, and a record that is wrong does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import togi
from togi.artifact.training import TrainingRecipe
from togi.cli.app import run
from togi.core.errors import ArtifactError, SubjectError, TogiError
from togi.core.records import PHASES, Outcome
from togi.decide.gate import Answer
from togi.machine.describe import machine
from togi.study.comparison import read_comparison
from togi.study.slowdown import cases_of
from togi.subject.training import TrainingStep
from togi.techniques import recipe
from togi.worker.locate import locate
from togi.worker.training_survey import survey_step

STEPS = """
import time
import torch
from torch import nn
import togi


class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.05)
        return super().forward(x)


def loss(module, sample):
    pictures, labels = sample
    return nn.functional.cross_entropy(module(pictures), labels)


def slow_loss(module, sample):
    found = loss(module, sample)
    time.sleep(0.03)
    return found


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def made(kind=nn.Sequential, step=loss, optimizer=adamw):
    torch.manual_seed(0)
    module = kind(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    sample = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    return togi.Subject(module, sample, step=step, optimizer=optimizer)


def fast():
    return made()


def slow():
    return made(Slow, slow_loss)


def sgd():
    return made(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
"""
WRONG = """
from togi.techniques.optimizer.fused import Fused


def wrong(self, step, options):
    for group in step.optimizer.param_groups:
        group["lr"] *= 1.001
    return step


Fused.apply_step = wrong
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("togi.study.bench.whole_s", lambda _race_s: 600.0)  # a busy machine loads torch for a minute
    (tmp_path / "steps.py").write_text(STEPS, encoding="utf-8")
    return tmp_path


def record(folder: Path, subject: str = "steps.py:fast", **choices: Any) -> str:
    """The record of a recipe for the step of ``subject``, as a study would write it."""
    step = TrainingStep.of(locate(subject))
    facts = survey_step(step, seed=0, machine=machine("cpu")).facts
    folder.mkdir()
    TrainingRecipe.of(recipe(**choices, plain_step={}), step, facts).write(folder)
    return str(folder)


@pytest.mark.thorough(20)
def test_steps_and_records_take_turns_and_say_where_their_time_goes(
    steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier comparison of them is read again, too."""
    fused = record(steps / "fused.togi", fused={}, kept_memory={})
    names = ["steps.py:fast", fused, "steps.py:slow"]
    code = run(["bench", *names, "--train", "--time-limit", "10s", "--fail-if-slower", "50%", "--json"])
    printed, said = capsys.readouterr()
    assert code == 1, said
    document = json.loads(printed)
    assert document["train"]
    first, applied, slow = document["contestants"]
    assert [each["name"] for each in document["contestants"]] == names
    assert [each["outcome"] for each in document["contestants"]] == ["ok"] * 3, document["contestants"]
    passed, _, failed = (case["answer"] for case in document["gate"])
    assert passed == "passed"
    assert failed in ("failed", "undecided"), "fifty times as slow, on a machine that may be busy"
    assert applied["error"]["faithful"]
    assert "gradient 0.weight" in {leaf["name"] for leaf in applied["error"]["leaves"]}
    assert slow["speedup_x"]["median"] < 0.5
    for each in (first, applied, slow):
        assert [*each["phases_ms"]] == [phase for phase in PHASES if phase != "forward and loss"]
        assert each["footprint"]["peak_bytes"] >= 0
    assert slow["phases_ms"]["forward"] >= 50
    assert slow["phases_ms"]["loss"] >= 30
    base = steps / "base.json"
    base.write_text(json.dumps(document), encoding="utf-8")
    again = read_comparison(base)
    assert again.contestants[0].phases_ms == first["phases_ms"]
    calm = again.model_copy(update={"noise": again.noise.model_copy(update={"spread": 0.0, "stolen": 0.0})})
    assert Answer.FAILED not in {case.answer for case in cases_of(again, 0.5, calm)}
    for shown in ("ms of a step", "the rest", " units"):
        assert shown in str(again)


@pytest.mark.thorough(20)
def test_a_record_that_is_wrong_here_does_not_race(steps: Path) -> None:
    fused = record(steps / "fused.togi", fused={})
    (steps / "planted.py").write_text(STEPS + WRONG, encoding="utf-8")
    found = togi.bench("planted.py:fast", fused, train=True, time_limit_s=1)
    first, wrong = found.contestants
    assert first.outcome is Outcome.OK
    assert wrong.outcome is Outcome.WRONG
    assert "beyond what rounding explains" in wrong.reason
    assert wrong.speedup_x is None


@pytest.mark.thorough(20)
def test_a_record_of_another_optimizer_keeps_its_place_and_two_optimizers_race(steps: Path) -> None:
    other = record(steps / "sgd.togi", "steps.py:sgd", fused={})
    found = togi.bench("steps.py:fast", "steps.py:sgd", other, train=True, time_limit_s=1)
    first, sgd, of_sgd = found.contestants
    assert first.outcome is sgd.outcome is Outcome.OK
    assert sgd.speedup_x is not None
    assert of_sgd.outcome is Outcome.FAILED
    assert "the optimizer is AdamW and was SGD" in of_sgd.reason


def test_what_means_nothing_for_steps_is_refused_before_anything_starts(steps: Path) -> None:
    fused = record(steps / "fused.togi", fused={})
    with pytest.raises(SubjectError, match="holds no model: give the subject"):
        togi.bench(fused, fused, train=True)
    with pytest.raises(ArtifactError, match="To race it, name the subject too"):
        togi.bench("steps.py:fast", fused)
    (steps / "empty.togi").mkdir()
    with pytest.raises(ArtifactError, match="training recipe"):
        togi.bench("steps.py:fast", str(steps / "empty.togi"), train=True)
    for given, said in (
        ({"callers": 2}, "callers is of calls"),
        ({"batch_sizes": [1, 2]}, "batch_sizes is of calls"),
        ({"device": "cuda"}, "race on the CPU so far"),
    ):
        with pytest.raises(TogiError, match=said):
            togi.bench("steps.py:fast", "steps.py:slow", train=True, **given)  # type: ignore[arg-type]
    with pytest.raises(TogiError, match="train is for locators"):
        togi.bench(len, len, inputs=[], train=True)
