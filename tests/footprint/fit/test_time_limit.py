"""``--time-limit`` holds: each stage knows what is left, and what was found until then is handed over."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from togi.core.errors import FitError
from togi.core.records import Record
from togi.core.report import Report
from togi.footprint.fit import planner, time_limit, turns
from togi.footprint.fit.result import FitResult
from togi.footprint.fit.time_limit import NoTimeToPlan, TimeLimit
from togi.footprint.fit.training import planner as training_planner
from togi.footprint.fit.training import search
from togi.footprint.fit.training.fit import fit_training
from togi.footprint.fit.training.planner import TrainingPlanner
from togi.footprint.step import Step, make_step
from togi.subject.inputs import Subject


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of all that plans: how busy this machine is has no part in it."""
    clock = Clock()
    for module in (planner, search, time_limit, training_planner, turns):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_nothing_is_begun_that_would_not_end_in_time(clock: Clock) -> None:
    limit = TimeLimit(30.0)
    limit.note_run(4.0)
    clock.now += 10.0
    assert limit.left_s == 20.0
    assert limit.allows(5)
    assert not limit.allows(6)
    for attempt in range(4):
        assert clock.now < limit.search_until(attempt) <= limit.ends - 2 * limit.run_s
    assert limit.front_until() <= limit.ends
    assert limit.timing_until() <= limit.ends
    clock.now += 25.0
    assert limit.left_s == 0.0
    assert not limit.allows(1)


def test_too_short_a_limit_is_refused_as_soon_as_it_is_known_with_one_that_is_enough(clock: Clock) -> None:
    limit = TimeLimit(30.0)
    clock.now += 15.0
    limit.note_run(7.0)
    with pytest.raises(NoTimeToPlan, match=r"a run of the step takes 7\.0 s .* the limit is 30 s") as refused:
        limit.check()
    given = re.search(r"--time-limit (\d+)s", str(refused.value))
    assert given is not None
    longer = TimeLimit(float(given[1]))
    clock.now += 15.0
    longer.note_run(7.0)
    longer.check()


@pytest.mark.parametrize(("run_s", "seconds"), [(0.1, 60.0), (30.0, 1200.0), (600.0, 24_000.0)])
def test_without_a_limit_a_step_of_any_length_has_time(clock: Clock, run_s: float, seconds: float) -> None:
    limit = TimeLimit()
    clock.now += 2 * run_s
    limit.note_run(run_s)
    limit.check()
    assert limit.seconds == seconds
    assert limit.patience_s > 10 * run_s


@pytest.mark.parametrize("seconds", [3600.0, 36_000.0])
@pytest.mark.usefixtures("clock")
def test_whoever_waits_has_patience_for_as_long_as_the_limit_allows(seconds: float) -> None:
    assert TimeLimit(seconds).patience_s >= seconds


class Told(Report):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.limits: list[float | None] = []
        self.answers: list[Record] = []

    def entered(self, phase: str, limit_s: float | None = None) -> None:
        self.phases.append(phase)
        self.limits.append(limit_s)

    def found(self, answer: Record) -> None:
        self.answers.append(answer)


def _step(clock: Clock | None = None, seconds: float = 0.0) -> Step:
    """Each run takes so long, whatever it computes. The module lets the time go by: what a loss counts is put back."""

    class Layers(nn.Sequential):
        def forward(self, given: Tensor) -> Tensor:
            if clock is not None:
                clock.now += seconds
            output: Tensor = super().forward(given)
            return output

    def loss(module: nn.Module, given: Tensor) -> Tensor:
        return module(given).square().mean()

    torch.manual_seed(0)
    layers = Layers(*[part for _ in range(6) for part in (nn.Linear(64, 64), nn.Sigmoid())])

    return make_step(Subject(layers.train(), torch.randn(512, 64), step=loss), train=True)


@pytest.mark.parametrize("share", [0.0, 0.85, 2.0], ids=["nothing fits", "a plan fits", "it fits as it is"])
@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_planning_ends_within_its_limit_whatever_a_step_takes(clock: Clock, seconds: float, share: float) -> None:
    budget = 1 + int(share * TrainingPlanner(_step()).unmodified.peak_bytes)
    began = clock.now
    found = fit_training(_step(clock, seconds), budget, time_limit_s=30.0)
    assert clock.now - began <= 30.0 + seconds  # what has begun is finished
    assert found.fits is (share > 0)
    assert bool(found.plan.policies) is (share < 1)


@pytest.mark.parametrize("seconds", [100.0, 1000.0])
def test_a_step_of_any_length_is_planned_and_timed_without_a_limit(clock: Clock, seconds: float) -> None:
    found = fit_training(_step(clock, seconds), 1)
    assert found.plan.policies
    assert found.speedup_x is not None


def test_a_limit_that_no_plan_can_keep_is_refused_after_two_runs(clock: Clock) -> None:
    began = clock.now
    with pytest.raises(NoTimeToPlan, match="--time-limit"):
        fit_training(_step(clock, 10.0), 1, time_limit_s=30.0)
    assert clock.now - began == 20.0
    assert issubclass(NoTimeToPlan, FitError)


def test_a_step_that_fits_as_it_is_needs_no_time_for_a_plan(clock: Clock) -> None:
    found = fit_training(_step(clock, 10.0), 1 << 40, time_limit_s=30.0)
    assert found.fits
    assert not found.plan.policies


def test_each_stage_is_told_and_a_proven_plan_is_handed_over_at_once() -> None:
    told = Told()
    step = _step()
    peak = TrainingPlanner(step).plan(1 << 40, timed=False).plain.peak_bytes
    found = fit_training(step, int(0.8 * peak), report=told)
    assert found.fits
    assert told.phases[0] == "the first run of the step"
    assert told.phases[-1] == "timing steps in turns"
    assert all(limit_s is not None and limit_s >= 300 for limit_s in told.limits)
    (handed_over,) = told.answers
    assert isinstance(handed_over, FitResult)
    assert handed_over.fits
    assert handed_over.proof.exact
    assert handed_over.plan.policies == found.plan.policies
    assert any("before this plan was timed" in note for note in handed_over.notes)
    assert not any("before this plan was timed" in note for note in found.notes)


def test_a_search_that_the_limit_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = TrainingPlanner(_step())
    monkeypatch.setattr(TimeLimit, "search_until", lambda *_: time.monotonic() - 1.0)
    found = planned.plan(1, timed=False)
    assert not found.fits
    assert any("--time-limit" in note for note in found.notes)
