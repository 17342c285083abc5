"""``togi bench``: subjects and artifacts side by side, taking turns in one race."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from togi.artifact.manifest import PARTS, Manifest, read_manifest
from togi.core.errors import ArtifactError, SubjectError
from togi.core.records import REFERENCE_RECIPE, ErrorReport, Facts, Footprint, Machine, Outcome
from togi.machine.describe import machine
from togi.measure import RaceResult, race
from togi.study.batch_sizes import ROUNDS, PerSample, by_size
from togi.study.common_inputs import check_common_inputs
from togi.study.comparison import Comparison, Contestant
from togi.study.parts import record_parts
from togi.study.progress import Progress
from togi.subject.batch import Batch, BatchRequest, find_batch
from togi.worker.call import ChildCall
from togi.worker.deadline import Deadline, whole_s
from togi.worker.launch import NoTimeLeft
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef, Survey
from togi.worker.supervise import Limits, TrialEnded

_LIMITS = Limits(timeout_s=900.0)
_RACE_S = 60.0
_BATCH = ChildCall(function="togi.subject.batch:batch_of", request=BatchRequest, answer=Batch, purpose="called")


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
) -> Comparison:
    """Race ``specs`` (locators and ``.togi`` folders); the first is what the others are compared with.

    An artifact next to a subject runs on that subject's inputs and is verified against it; artifacts alone run on
    inputs made from the first one's signature. Subjects run in plain eager under ``no_grad`` on their own inputs.

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

    Raises:
        ArtifactError: one was tuned for another device.
        SubjectError: it is not clear which dimension is the batch, or subjects take different inputs.
    """
    race_s = time_limit_s or _RACE_S
    deadline = Deadline(time.monotonic() + whole_s(race_s), progress.message)
    device = _device(specs, device)
    here = machine(device)
    with ExitStack() as stack:
        bench = _Bench(
            stack,
            here,
            device,
            seed,
            progress,
            callers,
            from_host,
            max_latency_s,
            native,
            dict(checked),
            deadline,
            race_s,
        )
        field = [Contestant(name=name, batch=size) for name in _names(specs) for size in batch_sizes or (None,)]
        loaded, ended = bench.load(field, specs)
        if not different_inputs:
            check_common_inputs(bench.surveys, bench.batches)
        common: dict[str, Any] = {
            "machine": here,
            "batch_sizes": batch_sizes,
            "max_latency_s": max_latency_s,
            "notes": bench.notes,
        }
        first = next(iter(loaded)) if batch_sizes and loaded else field[0].label
        if len(loaded) < 2 or first not in loaded:
            verdict = "There is nothing to compare."
            if first not in loaded and not batch_sizes:
                verdict = f"Nothing was compared: the others are compared with {first}, which could not be loaded."
            alone = tuple(ended.get(each.label) or bench.alone(each) for each in field)
            return Comparison(contestants=alone, verdict=verdict, **common)
        result = race(
            [runner for label, runner in loaded.items() if label != first],
            loaded[first],
            budget_s=race_s,
            seed=seed,
            rivals=bench.rivals if len(batch_sizes) > 1 else None,
            min_rounds=ROUNDS if batch_sizes else 8,
        )
        raced = (ended.get(each.label) or bench.measured(each, loaded[each.label], result) for each in field)
        compared = _comparison(tuple(raced), result, callers, common)
        return by_size(compared, result) if batch_sizes else compared


@final
@dataclass
class _Bench:
    """Starts contestants, each in the pool of the subject that gives it its inputs."""

    stack: ExitStack
    here: Machine
    device: str
    seed: int
    progress: Progress
    callers: int
    from_host: bool
    max_latency_s: float | None
    native: bool
    manifests: dict[str, Manifest]
    """By spec: of every artifact, as it was first read."""
    deadline: Deadline
    race_s: float
    """What loading leaves for the race."""
    pools: dict[str, WorkerPool] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    """Of subjects for which nothing has been made yet that an artifact is verified against."""
    surveys: dict[str, Survey] = field(default_factory=dict)
    unusable: dict[str, TrialEnded | NoTimeLeft] = field(default_factory=dict)
    """Subjects that do not run on their own inputs, or could not be loaded in time."""
    batches: dict[str, Batch] = field(default_factory=dict)
    errors: dict[str, ErrorReport] = field(default_factory=dict)
    """By name, what verification said."""
    rivals: dict[str, str] = field(default_factory=dict)
    """By label, the group of those of whose batch sizes one is the best."""
    notes: list[str] = field(default_factory=list)

    def load(
        self, contestants: Sequence[Contestant], specs: Sequence[str]
    ) -> tuple[dict[str, PerSample], dict[str, Contestant]]:
        """By label: those that are ready to race, and how the others ended."""
        spec_of = dict(zip(_names(specs), specs, strict=True))
        loaded: dict[str, PerSample] = {}
        ended: dict[str, Contestant] = {}
        for number, each in enumerate(contestants):
            self.progress.message(f"loading {each.label}")
            share_s = (self.deadline.left_s - self.race_s) / (len(contestants) - number)  # one that hangs costs its own
            try:
                with self.deadline.within(share_s):
                    loaded[each.label] = self.start(each, spec_of[each.name], specs)
            except (TrialEnded, NoTimeLeft) as early:
                ended[each.label] = each.model_copy(update=_as_it_ended(early))
        return loaded, ended

    def start(self, found: Contestant, spec: str, specs: Sequence[str]) -> PerSample:
        """Loaded, verified unless it was at another batch size, and warm. Raises TrialEnded."""
        host = spec if not _is_artifact(spec) else next((s for s in specs if not _is_artifact(s)), specs[0])
        pool = self._pool(host)
        batch = None if found.batch is None else self._batch(host, pool).model_copy(update={"size": found.batch})
        if _is_artifact(spec):
            manifest = self.manifests.setdefault(spec, read_manifest(Path(spec)))
            check = not _is_artifact(host) and found.name not in self.errors
            if check:
                self._make_truth(host)
                if manifest.chain and manifest.chain[0].engine == PARTS:
                    record_parts(pool)
            running = pool.start_artifact(
                Path(spec).absolute(),
                manifest.recipe,
                manifest.facts,
                _LIMITS,
                check=check,
                batch=batch,
                identity=manifest.identity,
                native=self.native,
            )
        else:
            running = pool.start_unchecked(REFERENCE_RECIPE, _LIMITS, batch)
        self.stack.callback(running.close)
        running.name = found.label
        if running.error is not None:
            self.errors[found.name] = running.error
        least_ms = running.warm().pass_ms / (1 if _is_artifact(host) else Survey.read(pool.folder).facts.samples)
        over = self.max_latency_s is not None and least_ms > self.max_latency_s * 1e3
        self.rivals[found.label] = f"{found.name}, over the limit" if over else found.name
        return PerSample(running, found.batch or 1)

    def _batch(self, host: str, pool: WorkerPool) -> Batch:
        """Of the calls that the host gives to all its guests."""
        if host not in self.batches:
            alone = _is_artifact(host)
            signature = read_manifest(Path(host)).signature if alone else Survey.read(pool.folder).signature
            inputs = signature.inputs_facts
            try:
                if alone:
                    made = find_batch(inputs, [[each.shape for each in inputs]], {})
                else:
                    made = _BATCH.run(pool, BatchRequest(signature=signature), _LIMITS)
            except SubjectError as error:
                raise SubjectError(f"{host}: {error}") from None
            self.batches[host] = made
            self.notes.append(f"{host}: a batch is {made.in_words(signature)}")
        return self.batches[host]

    def _pool(self, host: str) -> WorkerPool:
        if host not in self.pools and host not in self.unusable:
            try:
                self.pools[host] = self._opened(host)
            except (TrialEnded, NoTimeLeft) as ended:
                self.unusable[host] = ended
        if host in self.unusable:
            raise self.unusable[host]
        return self.pools[host]

    def _opened(self, host: str) -> WorkerPool:
        artifact = _is_artifact(host)
        pool = self.stack.enter_context(
            WorkerPool(
                SubjectRef.here("artifact" if artifact else "locator", host),
                self.here,
                device=self.device,
                seed=self.seed,
                callers=self.callers,
                from_host=self.from_host,
                deadline=self.deadline,
            )
        )
        if not artifact:
            surveyed, _ = pool.survey(_LIMITS, lambda phase: self.progress.message(f"{phase} of {host}"))
            self.facts[host], self.surveys[host] = surveyed.facts, surveyed
        return pool

    def alone(self, found: Contestant) -> Contestant:
        """It is ready, and there is no race."""
        reason = "nothing could be loaded that would take turns with it"
        return found.model_copy(update={"reason": reason, "error": self.errors.get(found.name)})

    def measured(self, found: Contestant, raced: PerSample, result: RaceResult) -> Contestant:
        """After the race."""
        entry, running = result.entry(found.label), raced.running
        footprint: Footprint | None = None
        outcome, reason = Outcome.OK, entry.left_because
        if entry.traceback:
            outcome = Outcome.FAILED if running.ended is None else running.ended.ending.outcome
        else:
            try:
                footprint = running.footprint()
            except TrialEnded as ended:
                outcome, reason = ended.ending.outcome, ended.ending.reason
        return found.model_copy(
            update={
                "outcome": outcome,
                "reason": reason,
                "latency_ms": entry.latency_ms,
                "call_ms": entry.call_ms,
                "speedup_x": entry.speedup_x,
                "error": self.errors.get(found.name),
                "footprint": footprint,
            }
        )

    def _make_truth(self, host: str) -> None:
        """What an artifact is verified against; once for all that the host takes."""
        if (facts := self.facts.get(host)) is not None:
            self._pool(host).make_truth(facts, _LIMITS, lambda phase: self.progress.message(f"{phase} of {host}"))
            del self.facts[host]


def _as_it_ended(early: TrialEnded | NoTimeLeft) -> dict[str, Any]:
    """Outcome and reason of a contestant."""
    if isinstance(early, NoTimeLeft):
        return {"outcome": Outcome.TIMED_OUT, "reason": str(early)}
    longer = ". Give a longer --time-limit" if early.cut_off else ""
    return {"outcome": early.ending.outcome, "reason": f"{early.ending.reason}{longer}"}


def _device(specs: Sequence[str], wanted: str | None) -> str:
    tuned_for = {spec: read_manifest(Path(spec)).facts.device for spec in specs if _is_artifact(spec)}
    found = wanted or next(iter(tuned_for.values()), "cpu")
    for spec, device in tuned_for.items():
        if device != found.partition(":")[0]:
            raise ArtifactError(
                f"{spec} was tuned for {device}, and the comparison runs on {found}: compare what was tuned for one "
                "device"
            )
    return found


def _is_artifact(spec: str) -> bool:
    return spec.rstrip("/").endswith(".togi")


def _names(specs: Sequence[str]) -> list[str]:
    """The specs themselves; one given again gets a number."""
    return [
        spec if specs.index(spec) == i else f"{spec} ({specs[: i + 1].count(spec)})" for i, spec in enumerate(specs)
    ]


def _comparison(
    contestants: tuple[Contestant, ...], result: RaceResult, callers: int, common: dict[str, Any]
) -> Comparison:
    noises = [entry.noise for entry in result.entries]
    worst = max(noises, key=lambda noise: noise.spread)
    sentence = f"{result.sentence[0].upper()}{result.sentence[1:]}."
    return Comparison(
        contestants=contestants, verdict=sentence, noise=worst, rounds=result.rounds, callers=callers, **common
    )
