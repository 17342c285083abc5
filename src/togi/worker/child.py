"""A child's life: one job on the parent's word.

It sends what it finds as soon as it has it, so that whatever happens next, that much is known.
"""

from __future__ import annotations

from typing import Any, final

import torch

from togi.core.errors import Refused
from togi.graph.capture import keep
from togi.measure import keep_freed_memory
from togi.subject.sources.live import unpickled
from togi.techniques.build import classify, fingerprint, first_candidate
from togi.verify.derived_inputs import variants
from togi.verify.reference import make_truth
from togi.worker.answer import AnswerJob
from togi.worker.forking import fork_safe
from togi.worker.job import TRUTH_FOLDER, ChildJob
from togi.worker.protocol import Channel, Closed, Job, ServerConfig
from togi.worker.survey import idle_rewrites, survey
from togi.worker.trial import TrialJob

SERVES = -1
"""No exit status: the child goes on as a server."""


def run_job(job: Job, config: ServerConfig, subject: Any, channel: Channel) -> int:
    """Returns the child's exit status (0 when the job ended as the protocol says), or ``SERVES``."""
    keep_freed_memory()
    torch.set_num_threads(job.threads or config.threads)
    torch.manual_seed(config.seed)
    mine = _JOBS[job.kind](job, config, subject, channel)
    try:
        mine.run()
    except Closed:
        return 1
    except BaseException as error:
        channel.send({"failed": classify(error, mine.phase).model_dump(mode="json")})
        return 1
    return SERVES if mine.serves else 0


@final
class _SurveyJob(ChildJob):
    """Facts and signature of the subject: a file in the run's folder that every trial reads."""

    def run(self) -> None:
        self.enter("survey")
        config = self.config
        found = survey(
            self.subject,
            device=config.device,
            seed=config.seed,
            machine=config.machine,
            callers=config.callers,
            captured=False,
            live=unpickled(config.subject.answer) if config.subject.answer.exists() else None,
        )
        name = fingerprint(first_candidate(self.subject, found.facts, found.signature).module)
        found.write(self.folder)
        self.channel.send({"surveyed": {"survey": found.model_dump(mode="json"), "fingerprint": name}})


@final
class _CaptureJob(ChildJob):
    """Keep what ``torch.export`` makes of the subject, and serve those who want it where that can be."""

    def run(self) -> None:
        self.enter("capture")
        try:
            captured = keep(self.start())
        except Refused as refused:
            self.channel.send({"captured": {"facts": {"exportable": False, "export_error": str(refused)}}})
            return
        self.serves = fork_safe(self.config.device)
        conditions = captured.signature.conditions
        self.channel.send({"captured": {"facts": {"exportable": True}, "conditions": conditions, "forks": self.serves}})
        if not self.serves:
            _tell_idle_rewrites(self)


@final
class _RewritesJob(ChildJob):
    """Of the captured subject, asked of the child that captured it."""

    def run(self) -> None:
        _tell_idle_rewrites(self)


def _tell_idle_rewrites(job: ChildJob) -> None:
    """Which rewrites have nothing to do in the captured subject."""
    job.enter("rewrites")
    job.channel.send({"idle": idle_rewrites(job.start())})


@final
class _TruthJob(ChildJob):
    """What is right, for the trials to be compared with: files in the run's folder."""

    def run(self) -> None:
        self.enter("truth")
        facts, signature = self.surveyed.facts, self.surveyed.signature
        start = first_candidate(self.subject, facts, signature)
        truth = make_truth(
            start.module,
            variants(start.samples, signature, self.config.seed),
            signature,
            seed=self.config.seed,
            device=self.config.device,
            samples=len(start.samples),
            metric=self.subject.metric,
            flops=None if facts.flops is None else facts.flops / facts.samples,
        )
        folder = self.folder / TRUTH_FOLDER
        folder.mkdir(exist_ok=True)
        truth.save(folder)
        self.channel.send({"known": {"notes": list(truth.facts.notes)}})


_JOBS: dict[str, type[ChildJob]] = {
    "survey": _SurveyJob,
    "capture": _CaptureJob,
    "rewrites": _RewritesJob,
    "truth": _TruthJob,
    "call": AnswerJob,
    "trial": TrialJob,
    "artifact": TrialJob,
}
