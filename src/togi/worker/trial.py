"""The trial of a recipe or an artifact in a child: made and verified at once; then it does what its parent asks for."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from typing_extensions import assert_never

from togi.core.records import ErrorReport
from togi.measure import callers_on, give_back_cache
from togi.subject.inputs import Subject
from togi.subject.signature import Signature
from togi.techniques import is_exact
from togi.worker import messages
from togi.worker.channel import Channel
from togi.worker.checking import TrialCheck
from togi.worker.contender import BuiltRecipe, Contender, LoadedArtifact
from togi.worker.job import ChildJob
from togi.worker.measuring import Measuring
from togi.worker.protocol import ServerConfig


class TrialJob(ChildJob[messages.AnyTrial]):
    contender: Contender

    def __init__(self, job: messages.AnyTrial, config: ServerConfig, subject: Any, channel: Channel) -> None:
        super().__init__(job, config, subject, channel)
        self.callers = callers_on(config.callers, config.device) if config.callers > 1 else None

    def run(self) -> None:
        """Ends when the parent closes the channel."""
        self.enter("build")
        began = time.perf_counter()
        match self.job:
            case messages.TryRecipe() as job:
                self.contender = BuiltRecipe(self, job)
            case messages.TryArtifact() as job:
                self.contender = LoadedArtifact(self, job)
            case job:
                assert_never(job)
        self.channel.send(messages.Built(build_s=time.perf_counter() - began, notes=self.contender.notes))
        if self.job.check:
            self.enter("verify")
            metric = self.whole.metric if isinstance(self.whole, Subject) and self.job.part is None else None
            report = self._judged(self.check.verify(metric, self.callers))
            self.channel.send(messages.Verified(report=report, notes=tuple(self.contender.notes_of_calls())))
        self.contender.mark.stops()
        self.channel.send(messages.Ready())
        while True:
            self.obey(self.channel.receive(messages.TO_TRIAL))

    def _judged(self, report: ErrorReport) -> ErrorReport:
        """With what validation data say of it: one half of them chooses, the other proves; all of data that had no part
        in the choice prove."""
        judging, data = self.config.judging, self.data_for(self.job.recipe)
        if judging is None or data is None or report.shown_right or report.problems:
            return report
        self.enter("validate")
        if isinstance(self.job, messages.TryArtifact) and self.job.accepted_on not in ("", data.identity):
            judging = judging.model_copy(update={"by_all": True})
        return self.check.judged(report, data, judging, confirmation=self.job.check is messages.Purpose.PROOF)

    @functools.cached_property
    def check(self) -> TrialCheck:
        return TrialCheck(self.contender, exact=is_exact(self.job.recipe))

    @functools.cached_property
    def measuring(self) -> Measuring:
        """Raises Refused where an artifact was not proven for calls with as many rows as the job asks for."""
        samples = self.contender.samples
        if self.job.batch is not None:
            samples = self.contender.of_batch(self.job.batch, self._signature)
        from_host = self.config.from_host and self.job.part is None  # parts of a program are called on the device
        # of an artifact on its own nobody has made a survey
        inputs_change = self.whole is not None and self.surveyed.inputs_change
        return Measuring(
            self.contender, samples, self.config.device, self.callers, from_host=from_host, inputs_change=inputs_change
        )

    @property
    def _signature(self) -> Signature:
        """The subject's; for an artifact on its own, the one that it was proven for."""
        if self.subject is None and self.contender.proven_for is not None:
            return self.contender.proven_for
        return self.surveyed.signature

    def obey(self, message: messages.ToTrial) -> None:
        """Do what is asked for. The parent stops this process as soon as it is answered, and others run."""
        self.contender.mark.goes_on()
        answer = self._answer(message)
        self.contender.mark.stops()
        self.channel.send(answer)

    def _answer(self, message: messages.ToTrial) -> messages.ChildAnswer:
        match message:
            case messages.Warm():
                self.enter("warm")
                warmed = self.measuring.warm(message.limit_s)
                if self.job.check and self.check.first_call_ms is not None:
                    warmed = warmed.model_copy(update={"first_call_ms": self.check.first_call_ms})
                return warmed
            case messages.TakeTurn():
                self.phase = "measure"
                return self.measuring.turn(message.passes)
            case messages.MeasureFootprint():
                self.enter("memory")
                return self.measuring.footprint()
            case messages.MeasurePhases():
                raise NotImplementedError("a call has none of the phases of a training step")
            case messages.AskAtOnce():
                self.enter("verify")
                return self.check.asked_at_once(message.callers)
            case messages.Rest():
                give_back_cache(self.config.device)
                return messages.Rested()
            case messages.Save():
                self.enter("save")
                return self.contender.save(Path(message.folder), self.check, message.ask_s)
            case _:
                assert_never(message)
