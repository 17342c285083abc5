"""The trial of a training step in its child: what is proven in float32 is what is measured, from the warm state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.made_up_machine import machine
from togi.core.recipe import Recipe
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.training import fit
from togi.footprint.fit.training.fit import plan_to_keep
from togi.measure import Turn, Warmup
from togi.subject.inputs import Subject
from togi.subject.training import TrainingStep
from togi.techniques import recipe
from togi.techniques.build import build_step
from togi.verify.training import StepTruth
from togi.worker import messages, training
from togi.worker.protocol import ServerConfig, SubjectRef


class Closed(Exception):
    """The parent has gone."""


class Parent:
    """Asks for what it is given, and keeps the answers."""

    def __init__(self, *asked: messages.ToTrial) -> None:
        self.asked, self.answers = list(asked), list[Any]()

    def send(self, answer: Any) -> None:
        self.answers.append(answer)

    def receive(self, _kinds: Any) -> messages.ToTrial:
        if not self.asked:
            raise Closed
        return self.asked.pop(0)

    def answer(self, kind: type[Any]) -> Any:
        return next(answer for answer in self.answers if isinstance(answer, kind))


def loss(module: nn.Module, sample: tuple[Tensor, Tensor]) -> Tensor:
    pictures, labels = sample
    return nn.functional.cross_entropy(module(pictures), labels)


def subject() -> Subject:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Tanh(), nn.GELU()]
    module = nn.Sequential(*layers, nn.Linear(8 * 36, 5))
    samples = [(torch.randn(256, 3, 8, 8), torch.randint(0, 5, (256,))) for _ in range(2)]
    return Subject(module.train(), samples, step=loss, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3))


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    made = ServerConfig(
        token="0" * 64,
        subject=SubjectRef(kind="nothing"),
        folder=str(tmp_path),
        device="cpu",
        seed=0,
        threads=1,
        machine=machine(),
        train=True,
    )
    for rest in (False, True):
        asked = messages.MakeTruth(log="", rest=rest)
        training._StepTruthJob(asked, made, subject(), Parent()).run()  # type: ignore[arg-type]
    return made


def tried(
    config: ServerConfig, found: Recipe, monkeypatch: pytest.MonkeyPatch, *asked: messages.ToTrial
) -> tuple[training.TrainingTrialJob, Parent, list[torch.dtype]]:
    """The trial, its parent, and the dtype of each step that was built."""
    built: list[torch.dtype] = []

    def build(given: Recipe, step: TrainingStep) -> TrainingStep:
        built.append(next(step.original.parameters()).dtype)
        return build_step(given, step)

    monkeypatch.setattr(training, "build_step", build)
    parent = Parent(*asked)
    job = training.TrainingTrialJob(messages.TryRecipe(log="", recipe=found), config, subject(), parent)  # type: ignore[arg-type]
    with pytest.raises(Closed):
        job.run()
    return job, parent, built


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({}, [torch.float32]),
        ({"fused": {}}, [torch.float32, torch.float64]),
        ({"channels_last": {}, "fused": {}}, [torch.float32, torch.float64]),
    ],
)
def test_what_is_measured_is_built_once_and_proven(
    choices: dict[str, Any], expected: list[torch.dtype], config: ServerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no other copy in float32."""
    job, parent, built = tried(config, recipe(**choices, plain_step={}), monkeypatch)
    assert built == expected
    assert parent.answer(messages.Verified).report.faithful
    truth = StepTruth.load(training._truth_file(Path(config.folder)), TrainingStep.of(subject()))
    for name, parameter in job.step.parameters.items():
        assert torch.equal(parameter, truth.start.tensors[name]), name


def test_the_first_step_is_that_of_the_proof(config: ServerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiles does so there, and a later step would say nothing of it."""
    asked = messages.Warm(limit_s=0.0), messages.TakeTurn(passes=1)
    job, parent, _ = tried(config, recipe(plain_step={}), monkeypatch, *asked)
    assert job.first_call_ms is not None
    assert parent.answer(Warmup).first_call_ms == job.first_call_ms > 0
    assert parent.answer(Turn).passes == 1


def test_what_is_not_proven_says_what_its_own_first_step_took(config: ServerConfig) -> None:
    parent = Parent(messages.Warm(limit_s=0.0))
    asked = messages.TryRecipe(log="", recipe=recipe(plain_step={}), check=None)
    job = training.TrainingTrialJob(asked, config, subject(), parent)  # type: ignore[arg-type]
    with pytest.raises(Closed):
        job.run()
    assert job.first_call_ms is None
    assert parent.answer(Warmup).first_call_ms > 0


def test_a_plan_is_made_once_and_serves_the_twin_the_record_and_other_trials(
    config: ServerConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans: list[Plan] = []

    def made(step: TrainingStep, keep: float) -> Plan:
        plans.append(plan_to_keep(step, keep))
        return plans[-1]

    monkeypatch.setattr(fit, "plan_to_keep", made)
    monkeypatch.setattr(fit, "load_planner", lambda: None)
    training._SurveyStepJob(messages.SurveySubject(log=""), config, subject(), Parent()).run()  # type: ignore[arg-type]
    asked = messages.Save(folder=str(tmp_path), ask_s=0.0)
    job, parent, built = tried(config, recipe(recompute={"keep": 0.0}, fused={}, plain_step={}), monkeypatch, asked)
    assert built == [torch.float32, torch.float64]
    assert parent.answer(messages.Verified).report.faithful
    assert job.step.plan is plans[0]
    again = messages.TryArtifact(log="", recipe=job.recipe, folder=str(tmp_path))
    applied = training.TrainingTrialJob(again, config, subject(), Parent())  # type: ignore[arg-type]
    with pytest.raises(Closed):
        applied.run()
    assert isinstance(applied.step.plan, Plan)
    assert applied.step.plan.policies == plans[0].policies
    other = tried(config, recipe(recompute={"keep": 0.0}, plain_step={}), monkeypatch)[0]
    assert isinstance(other.step.plan, Plan)
    assert other.step.plan.policies == plans[0].policies
    assert len(plans) == 1
