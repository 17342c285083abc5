"""The base of all jobs of a child: the subject, the survey of it, and the channel to the parent."""

from __future__ import annotations

import abc
import functools
from pathlib import Path
from typing import Any, Generic, TypeVar

from togi.core.choices import Mode
from togi.core.recipe import AnyRecipe
from togi.graph.candidate import Candidate
from togi.graph.capture import kept
from togi.subject.inputs import Subject
from togi.subject.prepare import prepare
from togi.subject.program import find_module
from togi.subject.pure import pure
from togi.subject.stored_inputs import read_inputs
from togi.subject.validation import Validation
from togi.techniques.build import first_candidate
from togi.techniques.registry import judged_on_data
from togi.worker.channel import Channel
from togi.worker.messages import Entered, Job
from togi.worker.protocol import PartRef, ServerConfig, Survey

J = TypeVar("J", bound=Job)

TRUTH_FOLDER = "truth"
"""What trials are compared with, below the folder of the run."""


class ChildJob(abc.ABC, Generic[J]):
    """One thing that a child does for the parent."""

    serves = False
    """Once it has run, the process goes on as a server."""

    def __init__(self, job: J, config: ServerConfig, subject: Any, channel: Channel) -> None:
        self.job = job
        self.config = config
        self.whole = subject
        self.channel = channel
        self.phase = "start"
        self.folder = Path(config.folder if job.part is None else job.part.folder)

    @abc.abstractmethod
    def run(self) -> None:
        """Do it, and send what is found as soon as it is known."""

    @functools.cached_property
    def subject(self) -> Any:
        """The subject of the study, or the part of it that this job is for."""
        part = self.job.part
        return self.whole if part is None else part_of(self.whole, part, self.config.device)

    @functools.cached_property
    def surveyed(self) -> Survey:
        """The survey that another child wrote; read once."""
        return Survey.read(self.folder)

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.channel.send(Entered(phase=phase))

    def data_for(self, recipe: AnyRecipe) -> Validation | None:
        """The validation data by which a recipe is judged: one of the whole subject that may err."""
        return self.whole.validation if self.job.part is None and judged_on_data(recipe, self.config.judging) else None

    def start(self) -> Candidate:
        """The candidate with which recipes begin."""
        return kept() or first_candidate(self.subject, self.surveyed.facts, self.surveyed.signature)


def part_of(subject: Subject, part: PartRef, device: str) -> Subject:
    """A module of the subject with its recorded calls, as a subject; what the calls change is returned instead."""
    ready = prepare(subject, device=device)
    module = find_module(ready.module, part.key.path, ready.samples[0])
    return Subject(pure(module, part.effects), read_inputs(Path(part.inputs)), mode=Mode.AS_IS)
