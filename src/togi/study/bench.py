"""``togi bench``: subjects and artifacts side by side, taking turns in one race."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from togi.artifact.manifest import PARTS, read_manifest
from togi.core.errors import ArtifactError
from togi.core.records import Facts, Footprint, Machine, Outcome
from togi.machine.describe import machine
from togi.measure import RaceEntry, RaceResult, race
from togi.study.comparison import Comparison, Contestant
from togi.study.parts import record_parts
from togi.study.progress import Progress
from togi.study.runner import REFERENCE_RECIPE
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, RunningTrial, TrialEnded

_LIMITS = Limits(timeout_s=900.0)


def run_bench(
    specs: Sequence[str],
    *,
    device: str | None,
    seed: int,
    time_limit_s: float | None,
    progress: Progress,
    callers: int = 1,
    from_host: bool = False,
) -> Comparison:
    """Race ``specs`` (locators and ``.togi`` folders); the first is what the others are compared with.

    An artifact beside a subject runs on that subject's inputs and is verified against it; artifacts alone run on inputs
    made from the first one's signature. Subjects run in plain eager under ``no_grad`` on their own inputs.

    ``device``: None is the one that the artifacts were tuned for, else the CPU. ``callers``: how many call at once.
    ``from_host``: with the copies of inputs to the device, and of results back.

    Raises ArtifactError where one was tuned for another.
    """
    device = _device(specs, device)
    here = machine(device)
    with ExitStack() as stack:
        bench = _Bench(stack, here, device, seed, progress, callers, from_host)
        names = _names(specs)
        loaded: dict[str, RunningTrial] = {}
        found: dict[str, Contestant] = {}
        for name, spec in zip(names, specs, strict=True):
            progress.message(f"loading {name}")
            try:
                loaded[name] = bench.start(name, spec, specs)
            except TrialEnded as ended:
                found[name] = Contestant(name=name, outcome=ended.ending.outcome, reason=ended.ending.reason)
        if len(loaded) < 2 or names[0] not in loaded:
            alone = "nothing could be loaded that would take turns with it"
            found |= {name: Contestant(name=name, reason=alone, error=each.error) for name, each in loaded.items()}
            verdict = "There is nothing to compare."
            if names[0] not in loaded:
                verdict = f"Nothing was compared: the others are compared with {names[0]}, which could not be loaded."
            return Comparison(contestants=tuple(found[name] for name in names), verdict=verdict, machine=here)
        first, *others = loaded.values()
        result = race(others, first, budget_s=time_limit_s or 60.0, seed=seed)
        found |= {name: _contestant(running, result.entry(name)) for name, running in loaded.items()}
        return _comparison(tuple(found[name] for name in names), result, here, callers)


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
    pools: dict[str, WorkerPool] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)

    def start(self, name: str, spec: str, specs: Sequence[str]) -> RunningTrial:
        host = spec if not _is_artifact(spec) else next((s for s in specs if not _is_artifact(s)), specs[0])
        pool = self._pool(host)
        if _is_artifact(spec):
            manifest = read_manifest(Path(spec))
            check = not _is_artifact(host)
            if check:
                self._make_truth(host)
                if manifest.chain and manifest.chain[0].engine == PARTS:
                    record_parts(pool)
            running = pool.start_artifact(Path(spec).absolute(), manifest.recipe, manifest.facts, _LIMITS, check=check)
        else:
            running = pool.start_unchecked(REFERENCE_RECIPE, _LIMITS)
        self.stack.callback(running.close)
        running.name = name
        running.warm()
        return running

    def _pool(self, host: str) -> WorkerPool:
        if host not in self.pools:
            artifact = _is_artifact(host)
            ref = SubjectRef.here("artifact", host) if artifact else SubjectRef.here("locator", host)
            made = WorkerPool(
                ref, self.here, device=self.device, seed=self.seed, callers=self.callers, from_host=self.from_host
            )
            pool = self.stack.enter_context(made)
            if not artifact:
                surveyed, _ = pool.survey(_LIMITS, lambda phase: self.progress.message(f"{phase} of {host}"))
                self.facts[host] = surveyed.facts
            self.pools[host] = pool
        return self.pools[host]

    def _make_truth(self, host: str) -> None:
        """What an artifact is verified against; once for all that the host takes."""
        if (facts := self.facts.get(host)) is not None:
            self._pool(host).make_truth(facts, _LIMITS, lambda phase: self.progress.message(f"{phase} of {host}"))
            del self.facts[host]


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
    """The specs themselves; one given again is told apart by a number."""
    return [
        spec if specs.index(spec) == i else f"{spec} ({specs[: i + 1].count(spec)})" for i, spec in enumerate(specs)
    ]


def _contestant(running: RunningTrial, entry: RaceEntry) -> Contestant:
    footprint: Footprint | None = None
    outcome, reason = Outcome.OK, entry.left_because
    if entry.traceback:
        outcome = Outcome.FAILED
    else:
        try:
            footprint = running.footprint()
        except TrialEnded as ended:
            outcome, reason = ended.ending.outcome, ended.ending.reason
    return Contestant(
        name=entry.name,
        outcome=outcome,
        reason=reason,
        latency_ms=entry.latency_ms,
        call_ms=entry.call_ms,
        speedup_x=entry.speedup_x,
        error=running.error,
        footprint=footprint,
    )


def _comparison(contestants: tuple[Contestant, ...], result: RaceResult, here: Machine, callers: int) -> Comparison:
    noises = [entry.noise for entry in result.entries]
    worst = max(noises, key=lambda noise: noise.spread)
    sentence = f"{result.sentence[0].upper()}{result.sentence[1:]}."
    return Comparison(
        contestants=contestants,
        verdict=sentence,
        machine=here,
        noise=worst,
        rounds=result.rounds,
        callers=callers,
    )
