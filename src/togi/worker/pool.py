"""The processes of one subject: its servers, and the children that are started from them."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from togi.core.errors import SubjectError, TrialServerError
from togi.core.quantities import plural
from togi.core.recipe import PartKey
from togi.core.records import Facts, Machine, Recipe
from togi.machine import nvml
from togi.subject.batch import Batch
from togi.subject.effects import Effects
from togi.techniques import technique
from togi.worker.deadline import Deadline
from togi.worker.inductor_cache import InductorCache
from togi.worker.launch import CapturedServer, TrialServer
from togi.worker.protocol import Job, Message, PartRef, ServerConfig, SubjectRef, Survey, new_token
from togi.worker.supervise import Limits, OnPhase, RunningTrial, TrialEnded

_CONDITIONS_TOLD = 3
_CAPTURE_SHARE = 0.6
"""Of the time that is left: where ``torch.export`` hangs, something can still be tried without it."""
_REWRITES_SHARE, _REWRITES_S = 0.2, 5.0
"""Of it, and at least so many seconds, for finding out which rewrites have nothing to do."""


class WorkerPool:
    """Starts trials of one subject and keeps them in a private folder that goes away at the end.

    A context manager. Raises TogiError (the subject's own) when the subject cannot be loaded.
    """

    def __init__(
        self,
        subject: SubjectRef,
        machine: Machine,
        *,
        device: str,
        seed: int,
        callers: int = 1,
        from_host: bool = False,
        nan_differences: bool = False,
        deadline: Deadline | None = None,
    ) -> None:
        """
        Args:
            deadline: of everything that is asked of its processes. None: each request has its own limit alone.
            callers: how many call at once, in threads of a child, while it is verified and measured.
            from_host: measured calls copy their inputs from host memory to the device, and their results back.
            nan_differences: what is saved may answer with a number where the original shows NaN.
        """
        self._device = device
        device, self._visible = one_device(device)
        self.folder = Path(tempfile.mkdtemp(prefix="togi-"))
        self.config = ServerConfig(
            token=new_token(),
            subject=subject,
            folder=str(self.folder),
            device=device,
            seed=seed,
            threads=machine.threads,
            machine=machine,
            callers=callers,
            from_host=from_host,
            nan_differences=nan_differences,
        )
        self.deadline = deadline or Deadline()
        self._inductor = InductorCache(self.folder)
        self._servers: dict[tuple[tuple[str, str], ...], TrialServer] = {}
        self._captured: CapturedServer | None = None
        self._truth: RunningTrial | None = None
        self._spared = 0
        """Threads that making the truth leaves to what runs next to it."""
        self._part: PartRef | None = None
        self._proven_on: tuple[PartRef, ...] = ()
        self._started = 0

    def part(self, key: PartKey, effects: Effects, inputs: Path, survey: Survey) -> WorkerPool:
        """The same processes, working on a part of the subject, which was surveyed when it was found. Ends with this
        pool; closing it ends what it alone started."""
        part = copy.copy(self)
        part.folder = Path(tempfile.mkdtemp(prefix="part-", dir=self.folder))
        part._captured = part._truth = None
        part._part = PartRef(key=key, effects=effects, inputs=str(inputs), folder=str(part.folder))
        survey.write(part.folder)
        return part

    def prove_on(self, calls: Iterable[tuple[PartKey, Effects, Path]]) -> None:
        """Where an artifact of parts decides otherwise than the original, each part is proven on the calls in a file:
        those that the original makes. ``Effects``: what they change."""
        self._proven_on = tuple(
            PartRef(key=key, effects=effects, inputs=str(file), folder=str(self.folder)) for key, effects, file in calls
        )

    def __enter__(self) -> Self:
        try:
            self.server({})
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._part is None:
            shutil.rmtree(self.folder, ignore_errors=True)  # first: a server told to end leaves it to this process
        if self._truth is not None:
            self._truth.close()
        if self._captured is not None:
            self._captured.close()
        self._truth = self._captured = None
        if self._part is not None:
            return
        for server in self._servers.values():
            server.ask_to_end()
        for server in self._servers.values():
            server.end()
        shutil.rmtree(self.folder, ignore_errors=True)  # what they wrote meanwhile

    def server(self, environment: Mapping[str, str]) -> TrialServer:
        """The server whose children run under ``environment``; started on first use."""
        key = tuple(sorted(environment.items()))
        if key not in self._servers:
            server = TrialServer(self.config, {**environment, **self._visible}, self.deadline)
            server.start()
            self._servers[key] = server
        return self._servers[key]

    def survey(self, limits: Limits, on_phase: OnPhase) -> tuple[Survey, str]:
        """Facts and signature of the subject as it is called, and its fingerprint.

        Raises TrialEnded when the subject cannot be run, SubjectError where the device takes one process at a time.
        """
        check_shared(self._device)
        with RunningTrial.begin(self.server({}), self._job("survey"), limits, "survey", on_phase) as trial:
            found = trial.wait_for("surveyed")
        return Survey.model_validate(found["survey"]), str(found["fingerprint"])

    def capture(self, survey: Survey, limits: Limits, on_phase: OnPhase, *, rewrites: bool = True) -> Survey:
        """The survey with what ``torch.export`` makes of the subject, and (``rewrites``) which rewrites have nothing to
        do there. On the CPU the truth is begun meanwhile, and trials that want the captured subject are given it from
        now on."""
        job = self._job("capture", threads=1)  # a process with more cannot fork
        # capturing takes one, and where there is nothing to capture, finding a program's parts takes more
        self._spared = max(1, self.config.threads // 2) if survey.facts.program else 1
        capturing = RunningTrial.begin(self.server({}), job, limits, "capture", on_phase)
        if self.config.device == "cpu":
            self._truth = self._begin_truth(limits, self._spared)
        try:
            with self.deadline.within(_CAPTURE_SHARE * self.deadline.left_s):
                captured = capturing.wait_for("captured")
        except TrialEnded as ended:
            captured = {"facts": {"exportable": False, "export_error": f"torch.export cannot capture it: {ended}"}}
        if captured.get("forks"):
            self._captured = CapturedServer(capturing.child)
        facts = captured["facts"]
        if facts["exportable"] and rewrites:
            # of a rewrite that crashes or hangs, its own trial tells
            with contextlib.suppress(TrialEnded, TrialServerError), self.deadline.within(self._for_rewrites_s):
                facts["idle_rewrites"] = self._idle_rewrites(capturing, limits, on_phase)
        if self._captured is None:
            capturing.close()
        signature = survey.signature.under(captured.get("conditions", ()))
        if told := signature.conditions_in_words():
            facts["notes"] = (*survey.facts.notes, _proven_where(told))
        facts = survey.facts.model_copy(update=facts)
        survey = survey.model_copy(update={"facts": facts, "signature": signature})
        survey.write(self.folder)
        return survey

    @property
    def _for_rewrites_s(self) -> float:
        return max(_REWRITES_S, _REWRITES_SHARE * self.deadline.left_s)

    def make_truth(self, facts: Facts, limits: Limits, on_phase: OnPhase) -> Facts:
        """Make what trials are verified against, in the folder; once, before the first trial that is verified.

        Returns the facts with what was learned. Raises TrialEnded when the subject cannot be run.
        """
        truth, self._truth = self._truth or self._begin_truth(limits), None
        with truth:
            truth.on_phase = on_phase
            found = truth.wait_for("known")
        facts = facts.model_copy(update={"notes": (*facts.notes, *found["notes"])})
        survey = Survey.read(self.folder)
        survey.model_copy(update={"facts": facts}).write(self.folder)
        return facts

    def _idle_rewrites(self, capturing: RunningTrial, limits: Limits, on_phase: OnPhase) -> Message:
        """Of the captured subject; where its process cannot serve, it tells them itself. Raises TrialEnded."""
        if self._captured is None:
            capturing.child.resume()
            return capturing.wait_for("idle")
        with RunningTrial.begin(self._captured, self._job("rewrites"), limits, "rewrites", on_phase) as trial:
            return trial.wait_for("idle")

    def _begin_truth(self, limits: Limits, spared: int = 0) -> RunningTrial:
        job = self._job("truth", threads=max(1, self.config.threads - spared))
        return RunningTrial.begin(self.server({}), job, limits, "truth")

    def start(self, recipe: Recipe, facts: Facts, limits: Limits, on_phase: OnPhase) -> RunningTrial:
        """A trial of ``recipe``, built and verified. Raises TrialEnded."""
        if any(technique(choice.technique).inductor for choice in recipe.choices):
            with self._inductor.keeping():
                return self._start(recipe, facts, limits, on_phase)
        return self._start(recipe, facts, limits, on_phase)

    def _start(self, recipe: Recipe, facts: Facts, limits: Limits, on_phase: OnPhase) -> RunningTrial:
        job, environment = self._job("trial", recipe=recipe), environment_of(recipe, facts)
        if self._captured is not None and not environment and captures(recipe):
            try:
                return RunningTrial.start(self._captured, job, limits, recipe.label, on_phase)
            except TrialServerError:
                self._captured.close()
                self._captured = None
        return RunningTrial.start(self.server(environment), job, limits, recipe.label, on_phase)

    def start_unchecked(self, recipe: Recipe, limits: Limits, batch: Batch | None = None) -> RunningTrial:
        """A trial of ``recipe``, built but not verified: for comparing speed alone. Raises TrialEnded.

        ``batch``: timed with so many samples a call."""
        job = self._job("trial", recipe=recipe, check=False, batch=batch)
        return RunningTrial.start(self.server({}), job, limits, recipe.label)

    def start_artifact(
        self,
        folder: Path,
        recipe: Recipe,
        facts: Facts,
        limits: Limits,
        *,
        check: bool,
        name: str = "",
        batch: Batch | None = None,
        identity: str = "",
        native: bool = True,
    ) -> RunningTrial:
        """An artifact loaded in a fresh child (and verified with ``check``). Raises TrialEnded.

        ``identity``: of the manifest that was checked; ``native``: engines may be programs. What an artifact says of
        the machine is not believed: libraries that are preloaded are those that were found on this one.
        """
        server = self.server(environment_of(recipe, facts.model_copy(update={"machine": self.config.machine})))
        job = self._job(
            "artifact",
            recipe=recipe,
            artifact=str(folder),
            check=check,
            proven_on=self._proven_on,
            batch=batch,
            identity=identity,
            native=native,
        )
        return RunningTrial.start(server, job, limits, name or folder.name)

    def call(self, function: str, request: Message, limits: Limits, on_phase: OnPhase = lambda _: None) -> Message:
        """What ``function`` answered or raised in a child of its own (``togi.worker.call``). Raises TrialEnded."""
        threads = self._spared if self._truth is not None else None
        job = self._job("call", threads=threads, function=function, request=request)
        with RunningTrial.begin(self.server({}), job, limits, function, on_phase) as running:
            return running.wait_for("returned")

    def _job(self, kind: str, **fields: object) -> Job:
        self._started += 1
        log = self.folder / f"{self._started}-{kind}.log"
        return Job.model_validate({"kind": kind, "log": str(log), "part": self._part, **fields})


def _proven_where(conditions: list[str]) -> str:
    first, more = conditions[:_CONDITIONS_TOLD], len(conditions) - _CONDITIONS_TOLD
    told = " and ".join([*first, *([f"{more} more"] if more > 0 else [])])
    return f"It is proven where {told}: for other sizes it computes something else, so what is tuned refuses them."


def one_device(device: str) -> tuple[str, dict[str, str]]:
    """The name of a device in children that see no other, and the environment that makes it so: ``cuda`` with
    ``CUDA_VISIBLE_DEVICES`` for ``cuda:N``. Timers, memory and backends then need not know which one it is.

    Raises SubjectError where ``CUDA_VISIBLE_DEVICES`` of this process names fewer.
    """
    kind, _, number = device.partition(":")
    if not number:
        return device, {}
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if visible and int(number) >= len(visible):
        raise SubjectError(
            f"device {device} was asked for, and CUDA_VISIBLE_DEVICES={','.join(visible)} shows "
            f"{plural(len(visible), 'device')}: count from 0 among these"
        )
    return kind, {"CUDA_VISIBLE_DEVICES": visible[int(number)] if visible else number}


def check_shared(device: str) -> None:
    """Raises SubjectError where the GPU is in a compute mode that keeps a second process from it."""
    gpu = nvml.read_gpu(device) if device.startswith("cuda") else None
    if gpu is not None and gpu.compute_mode not in (None, "default"):
        raise SubjectError(
            f"the GPU is in compute mode '{gpu.compute_mode}', and a study holds several processes on it: the "
            f"reference, the trial, the finalists. Set it back: {nvml.SHARE}"
        )


def captures(recipe: Recipe) -> bool:
    """It works on the captured subject."""
    return any(technique(choice.technique).captures for choice in recipe.choices)


def environment_of(recipe: Recipe, facts: Facts) -> dict[str, str]:
    """Environment variables that the recipe's techniques need before the process starts."""
    environment: dict[str, str] = {}
    for choice in recipe.choices:
        environment |= technique(choice.technique).environment(facts, dict(choice.options))
    return environment
