"""The jobs of a child where a training step is tuned: its survey, its truth, and the trial of a recipe.

A trial begins at the same warm state as the truth, where it is verified. What is measured is the step that was proven
in float32, put back to that state. It moves on from turn to turn as in a training; rounds are paired, so that times
that depend on values cancel out.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import assert_never

from togi.artifact.manifest import Saved
from togi.artifact.training import TrainingRecipe
from togi.core.recipe import STAGES, Recipe, Stage
from togi.core.records import ErrorReport, Footprint
from togi.footprint.fit.plan import Plan
from togi.measure import (
    give_back_cache,
    keep_all_memory,
    mark_memory,
    measure_footprint,
    take_turn,
    warm,
    with_own_heap,
)
from togi.measure.phases import phases_ms
from togi.measure.turn import Turn, Warmup
from togi.subject.identity import code_and_settings_hash, value_hash
from togi.subject.inputs import Inputs, with_own_containers
from togi.subject.training import TrainingStep
from togi.subject.validation import deciding_hash
from togi.techniques.build import build_step, fingerprint
from togi.techniques.registry import equals_to_the_bit, technique
from togi.verify.step_truth import complete_step_truth, make_step_truth
from togi.verify.training import StepTruth, verify_step, warm_copy
from togi.worker import messages
from togi.worker.job import TRUTH_FOLDER, ChildJob
from togi.worker.training_survey import survey_step

_PLANS = "plans"
"""Folder in the run's own."""


def of_training(job: messages.Job) -> Callable[..., ChildJob[Any]] | None:
    """What does this job for a training step; None where that makes no difference."""
    match job:
        case messages.SurveySubject():
            return _SurveyStepJob
        case messages.MakeTruth():
            return _StepTruthJob
        case messages.TryRecipe() | messages.TryArtifact():
            return TrainingTrialJob
        case _:
            return None


class _SurveyStepJob(ChildJob[messages.SurveySubject]):
    def run(self) -> None:
        self.enter("survey")
        step = TrainingStep.of(self.subject, device=self.config.device)
        subject, module = self.subject, step.original
        functions = value_hash(subject.step, subject.train_step, subject.optimizer)
        name = f"{fingerprint(module)} {code_and_settings_hash(module)} {functions}"
        if inputs := deciding_hash(step.samples, integers=False):  # a batch is another one in each step anyway
            name = f"{name} {inputs}"
        surveyed = survey_step(step, seed=self.config.seed, machine=self.config.machine)
        surveyed.write(self.folder)
        self.channel.send(messages.Surveyed(survey=surveyed, fingerprint=name))


class _StepTruthJob(ChildJob[messages.MakeTruth]):
    def run(self) -> None:
        self.enter("truth")
        keep_all_memory()  # no time is measured here, and each new page costs some
        step = TrainingStep.of(self.subject, device=self.config.device)
        file = _truth_file(self.folder)
        if self.job.rest:
            known = StepTruth.load(file, step)
            truth = complete_step_truth(known, seed=self.config.seed)
            notes = truth.notes[len(known.notes) :]
        else:
            truth = make_step_truth(step, seed=self.config.seed, whole=False)
            notes = truth.notes
        file.parent.mkdir(exist_ok=True)
        written = file.with_suffix(".new")
        truth.save(written)
        written.replace(file)
        unproven = (truth.fallback and f"Float64 proves nothing of this step: {truth.fallback}.",)
        self.channel.send(messages.TruthMade(notes=(*notes, *filter(None, unproven)), complete=truth.complete))


def _truth_file(folder: Path) -> Path:
    return folder / TRUTH_FOLDER / "step.pt"


class TrainingTrialJob(ChildJob[messages.AnyTrial]):
    """A recipe, or the record of one, applied to the subject's training step."""

    first_call_ms: float | None = None
    """Of the step that the proof began with: what compiles in its first step did it there."""

    def run(self) -> None:
        """Ends when the parent closes the channel."""
        self.enter("build")
        began = time.perf_counter()
        known = self._known_plan()
        self.mark = mark_memory(self.config.device)
        given = TrainingStep.of(self.subject, device=self.config.device)
        truth = StepTruth.load(_truth_file(self.folder), given) if self.job.check else None
        plain = given if truth is None else warm_copy(truth.step, truth.start, truth.step.samples)
        recorded = TrainingRecipe.read(Path(self.job.folder)) if isinstance(self.job, messages.TryArtifact) else None
        if recorded is not None:
            recorded.check(plain)
        self.recipe: Recipe = self.job.recipe if recorded is None else recorded.recipe
        self.step = build_step(
            self.recipe, dataclasses.replace(plain, plan=known if recorded is None else recorded.plan)
        )
        self._keep_plan()
        notes = tuple(note for note in self.step.notes if note not in given.notes)
        self.channel.send(messages.Built(build_s=time.perf_counter() - began, notes=notes))
        if truth is not None:
            self.enter("verify")
            verified = functools.partial(self._verified, truth)
            # on a device the host's memory is not measured, and torch keeps what CUDA graphs share by thread
            report = with_own_heap(verified) if self.config.device == "cpu" else verified()
            del verified
            self.channel.send(messages.Verified(report=report, notes=report.notes))
        del truth, plain, given
        gc.collect()
        self.channel.send(messages.Ready())
        while True:
            self.obey(self.channel.receive(messages.TO_TRIAL))

    def _known_plan(self) -> Plan | None:
        """That of an earlier trial. Where there is none, what is needed to make one is loaded."""
        if isinstance(self.job, messages.TryArtifact):
            return None
        if self._plan_file().exists():
            return Plan.load(self._plan_file())
        for choice in self.job.recipe.choices:
            technique(choice.technique).preload()
        return None

    def _plan_file(self) -> Path:
        """Where a plan rests for all trials whose recipes are the same up to their activations."""
        until = STAGES.index(Stage.ACTIVATIONS)
        choices = tuple(choice for choice in self.job.recipe.choices if STAGES.index(choice.stage) <= until)
        return self.folder / _PLANS / f"{Recipe(choices=choices).id}.json"

    def _keep_plan(self) -> None:
        file = self._plan_file()
        if not isinstance(self.step.plan, Plan) or file.exists():
            return
        file.parent.mkdir(exist_ok=True)
        written = file.with_suffix(".new")
        self.step.plan.save(written)
        written.replace(file)  # a trial may be ended at any moment

    def _verified(self, truth: StepTruth) -> ErrorReport:
        def build(step: TrainingStep) -> TrainingStep:
            return build_step(self.recipe, dataclasses.replace(step, plan=self.step.plan))

        found = None
        if not truth.unrepeatable:
            found = truth.observe_built(self.step)
            self.first_call_ms = found.first_ms
        return verify_step(build, truth, to_the_bit=equals_to_the_bit(self.recipe), found=found)

    def _call(self, *args: Any, **kwargs: Any) -> None:
        self.step.run(with_own_containers(Inputs(args, kwargs)))

    def obey(self, message: messages.ToTrial) -> None:
        match message:
            case messages.Warm():
                self.enter("warm")
                self.channel.send(self._warmed(message.limit_s))
            case messages.TakeTurn():
                self.phase = "measure"
                self.channel.send(self._turn(message.passes))
            case messages.MeasureFootprint():
                self.enter("memory")
                self.channel.send(self._footprint())
            case messages.MeasurePhases():
                self.phase = "measure"
                self.channel.send(self._phases())
            case messages.Rest():
                give_back_cache(self.config.device)
                self.channel.send(messages.Rested())
            case messages.Save():
                self.enter("save")
                TrainingRecipe.of(self.recipe, self.step, self.surveyed.facts).write(Path(message.folder))
                self.channel.send(Saved())
            case messages.AskAtOnce():
                raise NotImplementedError("a training step has one caller")
            case _:
                assert_never(message)

    def _warmed(self, limit_s: float | None) -> Warmup:
        run = functools.partial(warm, self._call, self.step.samples, device=self.config.device)
        warmed = run() if limit_s is None else run(limit_s=limit_s)
        known = self.first_call_ms
        return warmed if known is None else warmed.model_copy(update={"first_call_ms": known})

    def _turn(self, passes: int) -> Turn:
        return take_turn(self._call, self.step.samples, passes, device=self.config.device)

    def _phases(self) -> messages.Phases:
        samples = self.step.samples

        def run() -> None:
            for sample in samples:
                self._call(*sample.args, **sample.kwargs)

        found = phases_ms(run, self.step.module)
        return messages.Phases(phases_ms={phase: ms / len(samples) for phase, ms in found.items()})

    def _footprint(self) -> Footprint:
        """With malloc as the recipe has it: what it keeps counts."""
        device = self.config.device
        return measure_footprint(self._call, self.step.samples, self.mark, device=device, as_it_is=True)
