"""``togi bench``: subjects and artifacts side by side, taking turns in one race."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from togi.artifact.manifest import Manifest, read_manifest
from togi.artifact.training import TrainingRecipe
from togi.core.errors import ArtifactError, SubjectError
from togi.core.judging import Judging
from togi.core.other_python import OtherPython, other_python
from togi.core.records import ErrorReport, Footprint, Outcome, reference_recipe
from togi.decide.faithful import accept
from togi.machine.describe import machine
from togi.machine.load import crowded
from togi.measure import RaceResult, race
from togi.study.batch_sizes import ROUNDS, PerSample, by_size
from togi.study.bench_pools import LIMITS, BenchPools, Side, is_artifact
from togi.study.common_inputs import check_common_inputs
from togi.study.comparison import Comparison, with_doubt
from togi.study.contestants import Contestant
from togi.study.parts import record_parts
from togi.study.progress import Progress
from togi.subject.batch import Batch
from togi.techniques import is_exact
from togi.worker.deadline import Deadline, whole_s
from togi.worker.launch import NoTimeLeft
from togi.worker.messages import Purpose
from togi.worker.supervise import RunningTrial, TrialEnded

_RACE_S = 60.0
_PHASE_PASSES, _PHASE_SHARE = 5, 0.2
"""How often each training step is run again for the time of its phases, and in what share of the race's time."""


def run_bench(
    specs: Sequence[str],
    *,
    device: str | None,
    seed: int,
    time_limit_s: float | None,
    progress: Progress,
    callers: int = 1,
    from_host: bool = False,
    batch_sizes: Sequence[int] = (),
    max_latency_s: float | None = None,
    native: bool = True,
    checked: Mapping[str, Manifest] = MappingProxyType({}),
    different_inputs: bool = False,
    pythons: Sequence[str] = (),
    unproven: bool = False,
    judging: Judging | None = None,
    data: str = "",
    train: bool = False,
) -> Comparison:
    """Race ``specs`` (locators and ``.togi`` folders); the first is what the others are compared with.

    An artifact next to a subject runs on that subject's inputs and is verified against it; artifacts alone run on
    inputs made from the first one's signature. Subjects run in plain eager under ``no_grad`` on their own inputs.

    With ``train`` the training steps of subjects race as they are, and folders hold the record of one, which is applied
    to the step of the first subject and verified against it.

    Args:
        device: None is the one that the artifacts were tuned for, else the CPU.
        time_limit_s: of the race. All of it ends after five times as long, and two minutes at least (``whole_s``).
        callers: how many call at once.
        from_host: with the copies of inputs to the device, and of results back.
        batch_sizes: each is raced in calls of each of these sizes, by the time per sample.
        max_latency_s: of a call, for the size that is named best.
        native: artifacts may be run by engines whose files are programs.
        checked: manifests that were checked, by spec; others are read here.
        different_inputs: compare subjects that take different inputs, too.
        pythons: interpreters of environments, in each of which each subject takes part.
        unproven: artifacts run by the engine that was chosen even if its answers depend on instructions that this
            processor lacks: they are about to be verified.
        judging, data: by what artifacts are judged besides their error, and on which data.

    Raises:
        TogiError: an environment lacks torch, or this version of togi.
        ArtifactError: one was tuned for another device.
        SubjectError: it is not clear which dimension is the batch, or subjects take different inputs; there are records
            of training steps without a subject.
    """
    sides = _sides(specs, pythons)
    specs = [*sides] or specs
    race_s = time_limit_s or _RACE_S
    deadline = Deadline(time.monotonic() + whole_s(race_s), progress.message)
    if train:
        _check_records(specs)
    device = (device or "cpu") if train else device_of(specs, device)
    here = machine(device)
    if busy := crowded(here):
        progress.message(busy)
    with ExitStack() as stack:
        pools = BenchPools(
            stack,
            here,
            device=device,
            seed=seed,
            callers=callers,
            from_host=from_host,
            judging=judging,
            data=data,
            deadline=deadline,
            progress=progress,
            sides=sides,
            train=train,
        )
        bench = _Bench(stack, pools, specs, native, unproven, dict(checked), max_latency_s, train)
        field = [Contestant(name=name, batch=size) for name in distinct(specs) for size in batch_sizes or (None,)]
        bench.load(field, deadline, race_s, progress)
        if not different_inputs:
            check_common_inputs(pools.surveys, pools.batches)
        common: dict[str, Any] = {
            "machine": here,
            "train": train,
            "device": device.partition(":")[0],
            "batch_sizes": batch_sizes,
            "max_latency_s": max_latency_s,
            "notes": [*map(_in_words, {side.interpreter: None for side in sides.values()}), *pools.notes],
        }
        loaded = bench.loaded
        first = next(iter(loaded)) if batch_sizes and loaded else field[0].label
        if len(loaded) < 2 or first not in loaded:
            verdict = "There is nothing to compare."
            if first not in loaded and not batch_sizes:
                verdict = f"Nothing was compared: the others are compared with {first}, which could not be loaded."
            return Comparison(contestants=tuple(map(bench.alone, field)), verdict=verdict, **common)
        result = race(
            [runner for label, runner in loaded.items() if label != first],
            loaded[first],
            budget_s=race_s,
            seed=seed,
            rivals=bench.rivals if len(batch_sizes) > 1 else None,
            min_rounds=ROUNDS if batch_sizes else 8,
        )
        if train:
            progress.message("timing the phases of the steps")
            bench.time_phases(_PHASE_SHARE * race_s)
        raced = tuple(bench.raced(contestant, result) for contestant in field)
        compared = _comparison(raced, result, callers, common)
        return with_doubt(by_size(compared, result) if batch_sizes else compared)


@dataclass
class _Bench:
    """Starts contestants, and says how each ended."""

    stack: ExitStack
    pools: BenchPools
    specs: Sequence[str]
    native: bool
    unproven: bool
    manifests: dict[str, Manifest]
    """By spec: of every artifact, as it was first read."""
    max_latency_s: float | None
    train: bool
    loaded: dict[str, PerSample] = field(default_factory=dict)
    """By label, those that are ready to race."""
    ended: dict[str, Contestant] = field(default_factory=dict)
    """By label, how the others ended."""
    errors: dict[str, ErrorReport] = field(default_factory=dict)
    """By name, what verification said."""
    rivals: dict[str, str] = field(default_factory=dict)
    """By label, the group of those of whose batch sizes one is the best."""
    phases_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    """By label, of training steps."""

    def load(self, contestants: Sequence[Contestant], deadline: Deadline, race_s: float, progress: Progress) -> None:
        """Get them ready to race, in the time that is left besides the race's."""
        spec_of = dict(zip(distinct(self.specs), self.specs, strict=True))
        for number, contestant in enumerate(contestants):
            progress.message(f"loading {contestant.label}")
            share_s = (deadline.left_s - race_s) / (len(contestants) - number)  # one that hangs costs its own
            try:
                with deadline.within(share_s):
                    self.loaded[contestant.label] = self.start(contestant, spec_of[contestant.name])
            except (TrialEnded, NoTimeLeft) as early:
                self.ended[contestant.label] = contestant.model_copy(update=_as_it_ended(early))

    def start(self, contestant: Contestant, spec: str) -> PerSample:
        """Loaded, verified unless it was at another batch size, and warm. Raises TrialEnded, also where the record of a
        training step is found wrong: nothing else verifies it on this machine."""
        host = spec
        if is_artifact(spec):
            host = next((other for other in self.specs if not is_artifact(other)), self.specs[0])
        pool = self.pools.pool(host)
        batch = None
        if contestant.batch is not None:
            batch = self.pools.batch(host).model_copy(update={"size": contestant.batch})
        if is_artifact(spec):
            running = self._artifact(contestant.name, spec, host, batch)
        else:
            running = pool.start_unchecked(reference_recipe(train=self.train), LIMITS, batch)
        self.stack.callback(running.close)
        running.name = contestant.label
        if running.error is not None:
            self.errors[contestant.name] = running.error
            if self.train:
                outcome, reason = accept(running.error, exact=is_exact(running.recipe), max_error=math.inf)
                if outcome is not Outcome.OK:
                    raise running.end(outcome, reason, "verify")
        least_ms = running.warm().pass_ms / self.pools.samples(host)
        over = self.max_latency_s is not None and least_ms > self.max_latency_s * 1e3
        self.rivals[contestant.label] = f"{contestant.name}, over the limit" if over else contestant.name
        return PerSample(running, contestant.batch or 1)

    def _artifact(self, name: str, spec: str, host: str, batch: Batch | None) -> RunningTrial:
        pool = self.pools.pool(host)
        if self.train:
            self.pools.make_truth(host)
            recorded, facts = TrainingRecipe.read(Path(spec)).recipe, self.pools.surveys[host].facts
            return pool.start_artifact(Path(spec).absolute(), recorded, facts, LIMITS, check=Purpose.PROOF)
        manifest = self.manifests.setdefault(spec, read_manifest(Path(spec)))
        check = not is_artifact(host) and name not in self.errors
        if check:
            self.pools.make_truth(host)
            if manifest.parts:
                record_parts(pool)
        return pool.start_artifact(
            Path(spec).absolute(),
            manifest.recipe,
            manifest.facts,
            LIMITS,
            check=Purpose.PROOF if check else None,
            accepted_on=_accepted_on(manifest),
            batch=batch,
            identity=manifest.identity,
            native=self.native,
            unproven=self.unproven,
        )

    def time_phases(self, limit_s: float) -> None:
        """Of each training step, the median of a few passes. All take turns, so that they are of the same moments."""
        passes, began = defaultdict[str, list[dict[str, float]]](list), time.monotonic()
        for number in range(_PHASE_PASSES):
            if number and time.monotonic() - began > limit_s:
                break
            for label, contestant in self.loaded.items():
                with suppress(TrialEnded):  # ``raced`` says how it ended
                    passes[label].append(contestant.running.phases_ms())
        for label, found in passes.items():
            names = dict.fromkeys(phase for each in found for phase in each)
            self.phases_ms[label] = {
                phase: statistics.median(each.get(phase, 0.0) for each in found) for phase in names
            }

    def alone(self, contestant: Contestant) -> Contestant:
        """How it ended, or that it is ready and there is no race."""
        if contestant.label in self.ended:
            return self.ended[contestant.label]
        reason = "nothing could be loaded that would take turns with it"
        return contestant.model_copy(update={"reason": reason, "error": self.errors.get(contestant.name)})

    def raced(self, contestant: Contestant, result: RaceResult) -> Contestant:
        """How it ended, before the race or in it."""
        if contestant.label in self.ended:
            return self.ended[contestant.label]
        entry, running = result.entry(contestant.label), self.loaded[contestant.label].running
        footprint: Footprint | None = None
        outcome, reason = Outcome.OK, entry.left_because
        if entry.traceback:
            outcome = Outcome.FAILED if running.ended is None else running.ended.ending.outcome
        else:
            try:
                footprint = running.footprint()
            except TrialEnded as ended:
                outcome, reason = ended.ending.outcome, ended.ending.reason
        return contestant.model_copy(
            update={
                "outcome": outcome,
                "reason": reason,
                "latency_ms": entry.latency_ms,
                "call_ms": entry.call_ms,
                "speedup_x": entry.speedup_x,
                "error": self.errors.get(contestant.name),
                "footprint": footprint,
                "phases_ms": self.phases_ms.get(contestant.label, {}),
            }
        )


def _as_it_ended(early: TrialEnded | NoTimeLeft) -> dict[str, Any]:
    """Outcome and reason of a contestant."""
    if isinstance(early, NoTimeLeft):
        return {"outcome": Outcome.TIMED_OUT, "reason": str(early)}
    longer = ". Give a longer --time-limit" if early.cut_off else ""
    return {"outcome": early.ending.outcome, "reason": f"{early.ending.reason}{longer}"}


def _sides(specs: Sequence[str], pythons: Sequence[str]) -> dict[str, Side]:
    """Each subject in each environment, by the name that the contestant has. Raises TogiError as ``other_python``."""
    if pythons and (artifact := next(filter(is_artifact, specs), None)):
        raise SubjectError(f"{artifact} was made in one environment: to race environments, give what builds the model")
    interpreters = [other_python(path) for path in pythons]
    return {f"{spec} ({other.path})": Side(spec, other) for spec in specs for other in interpreters}


def _check_records(specs: Sequence[str]) -> None:
    """Raises ArtifactError for a folder that holds no record of a training step, SubjectError where there is nothing to
    apply one to."""
    records = [spec for spec in specs if is_artifact(spec)]
    for spec in records:
        TrainingRecipe.read(Path(spec))
    if len(records) == len(specs):
        raise SubjectError(
            f"{specs[0]} is the record of a training step, and holds no model: give the subject that it is for, too, "
            f"such as 'togi bench train.py:subject {specs[0]} --train'"
        )


def _in_words(other: OtherPython) -> str:
    return f"{other.path}: Python {other.python}, torch {other.torch}"


def device_of(specs: Sequence[str], wanted: str | None) -> str:
    """The device of a comparison. Raises ArtifactError where one was tuned for another."""
    tuned_for = {spec: read_manifest(Path(spec)).facts.device for spec in specs if is_artifact(spec)}
    device = wanted or next(iter(tuned_for.values()), "cpu")
    for spec, tuned in tuned_for.items():
        if tuned != device.partition(":")[0]:
            raise ArtifactError(
                f"{spec} was tuned for {tuned}, and the comparison runs on {device}: compare what was tuned for one "
                "device"
            )
    return device


def distinct(names: Sequence[str]) -> list[str]:
    """The names themselves; one given again gets a number."""
    return [
        name if names.index(name) == i else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def _comparison(
    contestants: tuple[Contestant, ...], result: RaceResult, callers: int, common: dict[str, Any]
) -> Comparison:
    verdict = as_sentence(result.sentence, [each.name for each in contestants])
    return Comparison(
        contestants=contestants, verdict=verdict, noise=result.noise, rounds=result.rounds, callers=callers, **common
    )


def as_sentence(said: str, names: Sequence[str]) -> str:
    """With a capital, unless it begins with one of the names: a file is called as it is written."""
    return f"{said if said.startswith(tuple(names)) else said[0].upper() + said[1:]}."


def _accepted_on(manifest: Manifest) -> str:
    error = manifest.proof.error
    return "" if error is None or error.accuracy is None else error.accuracy.data
