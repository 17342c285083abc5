"""Processes of a bench: a pool for each subject, or artifact, that gives contestants their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from togi.artifact.manifest import read_manifest
from togi.core.errors import SubjectError
from togi.core.judging import Judging
from togi.core.other_python import OtherPython
from togi.core.records import Machine
from togi.study.progress import Progress
from togi.subject.batch import Batch, BatchRequest, find_batch
from togi.worker.call import ChildCall
from togi.worker.deadline import Deadline
from togi.worker.launch import NoTimeLeft
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef, Survey
from togi.worker.supervise import Limits, OnPhase, TrialEnded

LIMITS = Limits(timeout_s=900.0)
"""Of each process of a bench, which ends by the deadline of all."""


class Side(NamedTuple):
    """A contestant of a race of environments."""

    locator: str
    interpreter: OtherPython


_BATCH = ChildCall(function="togi.subject.batch:batch_of", request=BatchRequest, answer=Batch, purpose="called")


class BenchPools:
    """Opens the pool of a host when its first guest is loaded. Pools end with ``stack``."""

    def __init__(
        self,
        stack: ExitStack,
        here: Machine,
        *,
        device: str,
        seed: int,
        callers: int,
        from_host: bool,
        judging: Judging | None,
        data: str,
        deadline: Deadline,
        progress: Progress,
        sides: Mapping[str, Side] = MappingProxyType({}),
        train: bool = False,
    ) -> None:
        """``sides``: by host, those that are a locator in another Python. ``train``: their training steps race."""
        self._stack, self._here, self._progress = stack, here, progress
        self._device, self._seed, self._callers = device, seed, callers
        self._from_host, self._judging, self._data = from_host, judging, data
        self._deadline, self._sides, self._train = deadline, sides, train
        self.surveys: dict[str, Survey] = {}
        self.batches: dict[str, Batch] = {}
        self.notes: list[str] = []
        self._pools: dict[str, WorkerPool] = {}
        self._with_truth: set[str] = set()
        self._unusable: dict[str, TrialEnded | NoTimeLeft] = {}
        """Subjects that do not run on their own inputs, or could not be loaded in time."""

    def pool(self, host: str) -> WorkerPool:
        """Raises TrialEnded or NoTimeLeft where the host cannot be run, each time that it is asked for."""
        if host in self._unusable:
            raise self._unusable[host]
        if host not in self._pools:
            try:
                self._pools[host] = self._opened(host)
            except (TrialEnded, NoTimeLeft) as ended:
                self._unusable[host] = ended
                raise
        return self._pools[host]

    def batch(self, host: str) -> Batch:
        """Of the calls that the host gives to all its guests."""
        if host not in self.batches:
            pool = self.pool(host)
            signature = read_manifest(Path(host)).signature if is_artifact(host) else Survey.read(pool.folder).signature
            inputs = signature.inputs_facts
            try:
                if is_artifact(host):
                    batch = find_batch(inputs, [[tensor.shape for tensor in inputs]], {})
                else:
                    batch = _BATCH.run(pool, BatchRequest(signature=signature), LIMITS)
            except SubjectError as error:
                raise SubjectError(f"{host}: {error}") from None
            self.batches[host] = batch
            self.notes.append(f"{host}: a batch is {batch.in_words(signature)}")
        return self.batches[host]

    def make_truth(self, host: str) -> None:
        """Make what artifacts are verified against; once for all that the subject takes."""
        if host not in self._with_truth:
            self.pool(host).make_truth(self.surveys[host].facts, LIMITS, self._tell(host))
            self._with_truth.add(host)

    def samples(self, host: str) -> int:
        """How many samples a pass of its guests calls."""
        return 1 if is_artifact(host) else Survey.read(self.pool(host).folder).facts.samples

    def _opened(self, host: str) -> WorkerPool:
        side = self._sides.get(host)
        here = SubjectRef.here("artifact" if is_artifact(host) else "locator", host)
        pool = self._stack.enter_context(
            WorkerPool(
                here if side is None else SubjectRef.elsewhere(side.locator),
                self._here,
                device=self._device,
                seed=self._seed,
                callers=self._callers,
                from_host=self._from_host,
                judging=self._judging,
                data=self._data,
                train=self._train,
                deadline=self._deadline,
                interpreter="" if side is None else side.interpreter.path,
            )
        )
        if not is_artifact(host):
            self.surveys[host], _ = pool.survey(LIMITS, self._tell(host))
        return pool

    def _tell(self, host: str) -> OnPhase:
        return lambda phase: self._progress.message(f"{phase} of {host}")


def is_artifact(spec: str) -> bool:
    return spec.rstrip("/").endswith(".togi")
