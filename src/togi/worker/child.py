"""A child's life: one job on the parent's word.

It sends what it finds as soon as it has it, so that whatever happens next, that much is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from typing_extensions import assert_never

from togi.core.choices import Direction
from togi.core.errors import Refused
from togi.decide.metric import MetricFacts
from togi.graph.candidate import Candidate
from togi.graph.capture import keep
from togi.measure import keep_freed_memory
from togi.subject.calibration import calibration_inputs
from togi.subject.coverage import calibration_notes
from togi.subject.sources.live import unpickled
from togi.subject.validation import deciding_hash, hash_of, shared
from togi.techniques.build import classify, fingerprint, first_candidate
from togi.verify.accuracy import (
    answer_once,
    check_answers,
    check_calls,
    how_read,
    judged_outputs,
    known_answers,
    not_judged,
)
from togi.verify.derived_inputs import variants
from togi.verify.metric import identity_of
from togi.verify.own_metric import OwnMetric, TakesLonger
from togi.verify.reference import make_truth
from togi.verify.scores import by_rows
from togi.worker import messages
from togi.worker.answer import AnswerJob
from togi.worker.channel import Channel, Closed
from togi.worker.forking import fork_safe
from togi.worker.job import TRUTH_FOLDER, ChildJob
from togi.worker.protocol import ServerConfig, changed
from togi.worker.survey import idle_rewrites, survey
from togi.worker.training import of_training
from togi.worker.trial import TrialJob

_DATA_AT_ONCE_S = 5.0
"""Validation data that the original answers sooner are answered before the first trial, so that the user hears at once
what is wrong with them. Others wait until a recipe is judged on them: faithful ones are not kept waiting."""
SERVES = -1
"""No exit status: the child goes on as a server."""


def run_job(job: messages.Job, config: ServerConfig, subject: Any, channel: Channel) -> int:
    """Returns the child's exit status (0 when the job ended as the protocol says), or ``SERVES``."""
    if job.keeps_memory and not config.train:  # the reference of a training step is a process as the user's own
        keep_freed_memory()
    torch.set_num_threads(job.threads or config.threads)
    torch.manual_seed(config.seed)
    work = _work_of(job, config, subject, channel)
    try:
        work.run()
    except Closed:
        return 1
    except BaseException as error:
        channel.send(classify(error, work.phase))
        return 1
    return SERVES if work.serves else 0


def _work_of(job: messages.Job, config: ServerConfig, subject: Any, channel: Channel) -> ChildJob[Any]:
    if config.train and (of_a_step := of_training(job)) is not None:
        return of_a_step(job, config, subject, channel)
    match job:
        case messages.SurveySubject():
            return _SurveyJob(job, config, subject, channel)
        case messages.CaptureSubject():
            return _CaptureJob(job, config, subject, channel)
        case messages.FindIdleRewrites():
            return _RewritesJob(job, config, subject, channel)
        case messages.MakeTruth():
            return _TruthJob(job, config, subject, channel)
        case messages.CallFunction():
            return AnswerJob(job, config, subject, channel)
        case messages.TryRecipe() | messages.TryArtifact():
            return TrialJob(job, config, subject, channel)
        case _:
            assert_never(job)


class _SurveyJob(ChildJob[messages.SurveySubject]):
    def run(self) -> None:
        self.enter("survey")
        config = self.config
        surveyed = survey(
            self.subject,
            device=config.device,
            seed=config.seed,
            machine=config.machine,
            callers=config.callers,
            captured=False,
            live=unpickled(config.subject.answer) if config.subject.answer.exists() else None,
        )
        module = first_candidate(self.subject, surveyed.facts, surveyed.signature).module
        name = f"{fingerprint(module)} {surveyed.code}"
        if self.config.needs_metric:
            name = f"{name} {identity_of(self.subject.metric, self.subject.better)}"
        if self.config.needs_data:
            name = f"{name} {self.subject.validation.identity}"
        if self.job.part is None and (inputs := deciding_hash(self.subject.inputs)):
            name = f"{name} {inputs}"
        if config.calibrates:
            surveyed = changed(surveyed, calibration=hash_of(calibration_inputs(self.subject)))
        surveyed.write(self.folder)
        self.channel.send(messages.Surveyed(survey=surveyed, fingerprint=name))


class _CaptureJob(ChildJob[messages.CaptureSubject]):
    def run(self) -> None:
        self.enter("capture")
        try:
            captured = keep(self.start())
        except Refused as refused:
            self.channel.send(messages.SubjectNotCaptured(reason=str(refused)))
            return
        self.serves = fork_safe(self.config.device)
        self.channel.send(messages.SubjectCaptured(conditions=captured.signature.conditions, forks=self.serves))
        if not self.serves:
            _send_idle_rewrites(self)


class _RewritesJob(ChildJob[messages.FindIdleRewrites]):
    def run(self) -> None:
        _send_idle_rewrites(self)


def _send_idle_rewrites(job: ChildJob[Any]) -> None:
    job.enter("rewrites")
    job.channel.send(messages.IdleRewrites(reasons=idle_rewrites(job.start())))


class _TruthJob(ChildJob[messages.MakeTruth]):
    def run(self) -> None:
        self.enter("truth")
        facts, signature = self.surveyed.facts, self.surveyed.signature
        start = first_candidate(self.subject, facts, signature)
        folder = self.folder / TRUTH_FOLDER
        metric, notes = (None, ()) if self.job.rest else self._truth(start, folder)
        answered, rest_s = not self.config.needs_data or self.job.part is not None, 0.0
        if not answered:
            self.enter("validation")
            check_calls(self.subject.validation, self.surveyed.signature)
            try:
                metric, answered = self._answered(start, folder) or metric, True
            except TakesLonger as longer:
                rest_s = longer.seconds * torch.get_num_threads() / self.config.threads  # the rest has all of them
        notes = (*notes, *(self._notes_on_data(folder) if answered else ()))
        problem = "" if metric is None else metric.problem
        made = messages.TruthMade(notes=notes, metric_problem=problem, complete=answered, rest_s=rest_s)
        self.channel.send(made)

    def _truth(self, start: Candidate, folder: Path) -> tuple[MetricFacts | None, tuple[str, ...]]:
        """Write down what trials are compared with. Returns what the user's metric says of it, and notes."""
        facts, signature = self.surveyed.facts, self.surveyed.signature
        truth = make_truth(
            start.module,
            variants(start.samples, signature, self.config.seed),
            signature,
            seed=self.config.seed,
            device=self.config.device,
            samples=len(start.samples),
            metric=None if self.config.metric_on_data else self.subject.metric,
            better=self._better,
            damage=self.config.needs_metric,
            flops=None if facts.flops is None else facts.flops / facts.samples,
        )
        folder.mkdir(exist_ok=True)
        truth.save(folder)
        return truth.facts.metric, truth.facts.notes

    @property
    def _better(self) -> Direction | None:
        return None if self.subject.better is None else Direction.of(self.subject.better)

    def _answered(self, start: Candidate, folder: Path) -> MetricFacts | None:
        """Have the original answer the validation data. Returns what the user's metric says of it, if that judges.
        Raises TakesLonger at first, where that is not soon done."""
        subject, config, validation = self.subject, self.config, self.subject.validation
        within_s = math.inf if self.job.rest else _DATA_AT_ONCE_S
        if config.metric_on_data:
            own = OwnMetric(subject.metric, validation, seed=config.seed, device=config.device)
            return own.score_original(start.module, folder, self._better, within_s)
        answer_once(start.module, validation, folder, within_s, seed=config.seed, device=config.device)
        if config.judging is not None and config.judging.measure is not None:
            answers, chooses = known_answers(folder, validation), not config.judging.by_all
            check_answers(config.judging.measure, validation, answers, chooses=chooses)
        return None

    def _of_answers(self, folder: Path) -> Iterator[str]:
        """Of which outputs the measure says nothing, and how it reads the others."""
        judging, validation = self.config.judging, self.subject.validation
        if judging is not None and judging.measure is not None:
            yield from not_judged(self.surveyed.signature, judged_outputs(judging.measure, validation, folder))
            yield from how_read(judging.measure, validation, folder)

    def _notes_on_data(self, folder: Path) -> list[str]:
        """On data that serve two purposes, on what no measure sees, and on what calibration data are like."""
        subject, notes = self.subject, list[str]()
        if self.job.part is not None:
            return notes
        if self.config.needs_data:
            validation, rows = subject.validation, False
            if not self.config.metric_on_data:
                rows = by_rows(validation.inputs, known_answers(folder, validation))
                notes += self._of_answers(folder)
            calibration = () if subject.calibration is None else calibration_inputs(subject)
            notes += shared(validation.inputs, subject.inputs, calibration, by_rows=rows)
        return [*notes, *calibration_notes(subject)] if self.config.calibrates else notes
