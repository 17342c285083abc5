"""The processes of one subject: its servers, and the children that are started from them."""

from __future__ import annotations

import contextlib
import copy
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from togi.core.caches import run_folder
from togi.core.errors import SubjectError, TrialServerError
from togi.core.judging import Judging
from togi.core.recipe import PartKey
from togi.core.records import Facts, Machine, Recipe, Record
from togi.subject.batch import Batch
from togi.subject.effects import Effects
from togi.techniques import technique
from togi.techniques.registry import equals_to_the_bit, judged_on_data
from togi.worker import messages
from togi.worker.channel import encoded, new_token
from togi.worker.deadline import Deadline
from togi.worker.devices import check_shared, one_device
from togi.worker.inductor_cache import InductorCache
from togi.worker.launch import CapturedServer, NoTimeLeft, TrialServer
from togi.worker.protocol import PartRef, Raised, ServerConfig, SubjectRef, Survey, changed
from togi.worker.supervise import Limits, OnPhase, RunningTrial, TrialEnded

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
        judging: Judging | None = None,
        data: str = "",
        calibration: str = "",
        calibrates: bool = False,
        train: bool = False,
        deadline: Deadline | None = None,
        interpreter: str = "",
    ) -> None:
        """
        Args:
            deadline: of everything that is asked of its processes. None: each request has its own limit alone.
            callers: how many call at once, in threads of a child, while it is verified and measured.
            from_host: measured calls copy their inputs from host memory to the device, and their results back.
            interpreter: the Python that its processes run in. Empty: this one.
            nan_differences: what is saved may answer with a number where the original shows NaN.
            judging: by what approximate results are judged besides their error.
            data: locator of the validation data; empty: those of the subject.
            calibration: locator or folder of the calibration data; empty: those of the subject.
            calibrates: what is tried may be calibrated, so that notes say what these data are like.
            train: its training step is tuned, not its calls.
        """
        self._device = device
        device, self._visible = one_device(device)
        self.folder = run_folder()
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
            interpreter=interpreter,
            judging=judging,
            data=data,
            calibration=calibration,
            calibrates=calibrates,
            train=train,
        )
        self.deadline = deadline or Deadline()
        self._inductor = InductorCache(self.folder)
        self._servers: dict[tuple[tuple[str, str], ...], TrialServer] = {}
        self._captured: CapturedServer | None = None
        self._truth: RunningTrial | None = None
        self._truth_is_whole = True
        """Else it proves only recipes that need no rest (``complete_truth``)."""
        self.rest_s = 0.0
        """About how long what needs the rest waits for it, where that is known."""
        self.export_s = 0.0
        """What capturing the subject takes a child that saves it; nothing where it has it from the process that forked
        it."""
        self._spared = 0
        """Threads that making the truth leaves to what runs next to it."""
        self._part: PartRef | None = None
        self._proven_on: tuple[PartRef, ...] = ()
        self._started = 0

    def part(self, key: PartKey, effects: Effects, inputs: Path, survey: Survey, others: str = "") -> WorkerPool:
        """The same processes, working on a part of the subject, which was surveyed when it was found. Ends with this
        pool; closing it ends what it alone started. ``inputs`` and ``others``: as in ``PartRef``."""
        part = copy.copy(self)
        part.folder = Path(tempfile.mkdtemp(prefix="part-", dir=self.folder))
        part._captured = part._truth = None
        part._part = PartRef(key=key, effects=effects, inputs=str(inputs), others=others, folder=str(part.folder))
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
        job = messages.SurveySubject(log=self._new_log("survey"), part=self._part)
        with RunningTrial.begin(self.server({}), job, limits, "survey", on_phase) as trial:
            surveyed = trial.wait_for(messages.Surveyed)
        return surveyed.survey, surveyed.fingerprint

    def capture(self, survey: Survey, limits: Limits, on_phase: OnPhase, *, rewrites: bool = True) -> Survey:
        """The survey with what ``torch.export`` makes of the subject, and (``rewrites``) which rewrites have nothing to
        do there. On the CPU the truth is begun meanwhile, and trials that want the captured subject are given it from
        now on."""
        began = time.monotonic()
        # a process with more threads than one cannot fork
        job = messages.CaptureSubject(log=self._new_log("capture"), part=self._part, threads=1)
        # capturing takes one, and where there is nothing to capture, finding a program's parts takes more
        self._spared = max(1, self.config.threads // 2) if survey.facts.program else 1
        capturing = RunningTrial.begin(self.server({}), job, limits, "capture", on_phase)
        if self.config.device == "cpu":
            self._truth = self._begin_truth(limits, self._spared)
        captured: messages.SubjectCaptured | messages.SubjectNotCaptured
        try:
            with self.deadline.within(_CAPTURE_SHARE * self.deadline.left_s):
                captured = capturing.wait_for(messages.SubjectCaptured, messages.SubjectNotCaptured)
        except TrialEnded as ended:
            captured = messages.SubjectNotCaptured(reason=f"torch.export cannot capture it: {ended}")
        match captured:
            case messages.SubjectCaptured():
                if captured.forks:
                    self._captured = CapturedServer(capturing.child)
                else:
                    self.export_s = time.monotonic() - began
                idle = self._idle_rewrites(capturing, limits, on_phase) if rewrites else {}
                survey = survey.when_captured(captured.conditions, idle)
            case messages.SubjectNotCaptured():
                survey = survey.not_captured(captured.reason)
        if self._captured is None:
            capturing.close()
        survey.write(self.folder)
        return survey

    def make_truth(self, facts: Facts, limits: Limits, on_phase: OnPhase, *, whole: bool = True) -> Facts:
        """Make what trials are verified against, in the folder; once, before the first trial that is verified.

        ``whole``: with validation data that the original takes long to answer; else ``complete_truth`` has it answer
        them. Returns the facts with what was learned. Raises TrialEnded when the subject cannot be run, SubjectError
        where its metric is needed and cannot judge.
        """
        truth, self._truth = self._truth or self._begin_truth(limits), None
        facts = self._learned(facts, truth, on_phase)
        if whole and not self._truth_is_whole and not self.config.train:
            facts = self._learned(facts, self._begin_truth(limits, rest=True), on_phase)
        return facts

    def complete_truth(self, recipe: Recipe, facts: Facts, limits: Limits, on_phase: OnPhase) -> Facts:
        """Make what was left out of the truth at first, once ``recipe`` needs it: what is equal to the bit in training
        does not, nor what is not judged on validation data. Returns and raises as ``make_truth`` does."""
        if self._truth_is_whole or recipe.is_reference:
            return facts
        if equals_to_the_bit(recipe) if self.config.train else not judged_on_data(recipe, self.config.judging):
            return facts
        return self._learned(facts, self._begin_truth(limits, rest=True), on_phase)

    def _learned(self, facts: Facts, truth: RunningTrial, on_phase: OnPhase) -> Facts:
        with truth:
            truth.on_phase = on_phase
            made = truth.wait_for(messages.TruthMade)
        if made.metric_problem and self.config.needs_metric:
            raise SubjectError(f"nothing can be judged by the metric, which --max-drop limits: {made.metric_problem}")
        self._truth_is_whole, self.rest_s = made.complete, made.rest_s
        unused = (f"The metric is not used: {made.metric_problem}.",) if made.metric_problem else ()
        return self._noted(facts, *made.notes, *unused)

    def _noted(self, facts: Facts, *notes: str) -> Facts:
        facts = changed(facts, notes=(*facts.notes, *notes))
        changed(Survey.read(self.folder), facts=facts).write(self.folder)
        return facts

    def _idle_rewrites(self, capturing: RunningTrial, limits: Limits, on_phase: OnPhase) -> Mapping[str, str]:
        """Ask the process that captured the subject, which reports them by itself if it cannot serve. A rewrite that
        crashes or hangs is left to its own trial."""
        within_s = max(_REWRITES_S, _REWRITES_SHARE * self.deadline.left_s)
        with contextlib.suppress(TrialEnded, TrialServerError), self.deadline.within(within_s):
            if self._captured is None:
                capturing.child.resume()
                return capturing.wait_for(messages.IdleRewrites).reasons
            job = messages.FindIdleRewrites(log=self._new_log("rewrites"), part=self._part)
            with RunningTrial.begin(self._captured, job, limits, "rewrites", on_phase) as trial:
                return trial.wait_for(messages.IdleRewrites).reasons
        return {}

    def _begin_truth(self, limits: Limits, spared: int = 0, *, rest: bool = False) -> RunningTrial:
        threads = max(1, self.config.threads - spared)
        job = messages.MakeTruth(log=self._new_log("truth"), part=self._part, threads=threads, rest=rest)
        return RunningTrial.begin(self.server({}), job, limits, "truth")

    def start(self, recipe: Recipe, facts: Facts, limits: Limits, on_phase: OnPhase) -> RunningTrial:
        """A trial of ``recipe``, built and verified. Raises TrialEnded."""
        if any(technique(choice.technique).inductor for choice in recipe.choices):
            with self._inductor.keeping():
                return self._start(recipe, facts, limits, on_phase)
        return self._start(recipe, facts, limits, on_phase)

    def _start(self, recipe: Recipe, facts: Facts, limits: Limits, on_phase: OnPhase) -> RunningTrial:
        facts = self.complete_truth(recipe, facts, Limits(timeout_s=limits.timeout_s), on_phase)
        job = messages.TryRecipe(log=self._new_log("trial"), part=self._part, recipe=recipe)
        environment = environment_of(recipe, facts)
        if self._captured is not None and not environment and captures(recipe):
            try:
                return RunningTrial.start(self._captured, job, limits, recipe.label, on_phase)
            except NoTimeLeft:  # it can still serve those that have time
                raise
            except TrialServerError:
                self._captured.close()
                self._captured = None
        return RunningTrial.start(self.server(environment), job, limits, recipe.label, on_phase)

    def go_on(self, trial: RunningTrial, limits: Limits) -> RunningTrial:
        """One that gave way builds and verifies on. Raises TrialEnded, or GaveWay again."""
        if any(technique(choice.technique).inductor for choice in trial.recipe.choices):
            with self._inductor.keeping():
                return trial.go_on(limits)
        return trial.go_on(limits)

    def start_unchecked(self, recipe: Recipe, limits: Limits, batch: Batch | None = None) -> RunningTrial:
        """A trial of ``recipe``, built but not verified: for comparing speed alone. Raises TrialEnded.

        ``batch``: timed with so many samples a call."""
        job = messages.TryRecipe(log=self._new_log("trial"), part=self._part, recipe=recipe, check=None, batch=batch)
        return RunningTrial.start(self.server({}), job, limits, recipe.label)

    def start_artifact(
        self,
        folder: Path,
        recipe: Recipe,
        facts: Facts,
        limits: Limits,
        *,
        check: messages.Purpose | None,
        name: str = "",
        batch: Batch | None = None,
        identity: str = "",
        accepted_on: str = "",
        native: bool = True,
        unproven: bool = False,
    ) -> RunningTrial:
        """An artifact loaded in a fresh child, and verified for the purpose ``check``. Raises TrialEnded.

        ``identity``: of the manifest that was checked; ``accepted_on``: of the validation data by which it was chosen;
        ``native``: engines may be programs; ``unproven``: their answers may depend on instructions that
        this processor lacks. What an artifact says of the machine is not believed: libraries that are preloaded are
        those that were found on this one.
        """
        if check is not None:
            facts = self.complete_truth(recipe, facts, Limits(timeout_s=limits.timeout_s), lambda _: None)
        server = self.server(environment_of(recipe, changed(facts, machine=self.config.machine)))
        job = messages.TryArtifact(
            log=self._new_log("artifact"),
            part=self._part,
            recipe=recipe,
            folder=str(folder),
            check=check,
            batch=batch,
            identity=identity,
            accepted_on=accepted_on,
            native=native,
            unproven=unproven,
            proven_on=self._proven_on,
        )
        return RunningTrial.start(server, job, limits, name or folder.name)

    def call(
        self,
        function: str,
        request: Record,
        limits: Limits,
        on_phase: OnPhase = lambda _: None,
        *,
        keeps_memory: bool = True,
    ) -> messages.Returned | Raised:
        """Call ``function`` in a child of its own (``togi.worker.call``). Raises TrialEnded."""
        job = messages.CallFunction(
            log=self._new_log("call"),
            part=self._part,
            threads=self._spared if self._truth is not None else None,
            function=function,
            request=encoded(request),
            keeps_memory=keeps_memory,
        )
        with RunningTrial.begin(self.server({}), job, limits, "the subject", on_phase) as running:
            return running.wait_for(messages.Returned, Raised)

    def _new_log(self, kind: str) -> str:
        self._started += 1
        return str(self.folder / f"{self._started}-{kind}.log")


def captures(recipe: Recipe) -> bool:
    """It works on the captured subject."""
    return any(technique(choice.technique).captures for choice in recipe.choices)


def environment_of(recipe: Recipe, facts: Facts) -> dict[str, str]:
    """Environment variables that the recipe's techniques need before the process starts."""
    environment: dict[str, str] = {}
    for choice in recipe.choices:
        environment |= technique(choice.technique).environment(facts, dict(choice.options))
    return environment
