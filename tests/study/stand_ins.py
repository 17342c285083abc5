"""What a study is tested with: a clock that only processes move, processes that are as fast as planted, and a pool of
them. All else is the real thing: journal, search, budget, stopwatch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from togi.artifact.manifest import Link, PartEntry, Saved, part_folder
from togi.artifact.save import write_manifest
from togi.core.recipe import PartKey
from togi.core.records import (
    REFERENCE_RECIPE,
    Ending,
    ErrorReport,
    Facts,
    Footprint,
    Interval,
    Machine,
    Outcome,
    Recipe,
    Study,
    Timing,
    Trial,
)
from togi.core.settings import Settings
from togi.journal import Journal
from togi.measure import Turn
from togi.search import Experience, Search
from togi.study.measurement import Stopwatch
from togi.study.open_study import OpenStudy
from togi.study.pace import USUAL, Pace
from togi.study.progress import Progress
from togi.study.time_budget import TimeBudget
from togi.study.tuned_subject import TunedSubject
from togi.study.warm_processes import WarmProcesses
from togi.subject.effects import Effects
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.techniques import all_techniques, recipe
from togi.worker.messages import Purpose
from togi.worker.protocol import AskedAtOnce
from togi.worker.supervise import GaveWay, Limits, TrialEnded

FAST, NEXT, SLOW = (recipe(**{engine: {}, "no_grad": {}}) for engine in ("openvino", "onnxruntime", "torchscript"))
REFERENCE_MS = 10.0
MACHINE = Machine(cpu_model="cpu", cpu_cores=2, memory_bytes=2**34, threads=2, os="linux", python="3.11")
FAITHFUL = ErrorReport(faithful=True, units=1.0, rmse=1e-7, max_abs=1e-7)
SAVED, SERVES_CALLERS = Saved(), AskedAtOnce()
WRONG = ErrorReport(faithful=False, units=90.0, rmse=1e-2, max_abs=1e-1)


def trial(tried: Recipe, speedup_x: float, mib: int = 10, *, ends: float = 0.01, **changes: Any) -> Trial:
    """One that was measured; ``ends``: how far the ends of its interval are from the median."""
    timing = Timing(
        latency_ms=Interval(median=10 / speedup_x, low=9 / speedup_x, high=11 / speedup_x),
        speedup_x=Interval(median=speedup_x, low=speedup_x * (1 - ends), high=speedup_x * (1 + ends)),
        rounds_ms=tuple((10.0, 10 / (speedup_x * scatter)) for scatter in (0.99, 1.0, 1.01) for _ in range(4)),
    )
    footprint = Footprint(idle_bytes=mib << 20, peak_bytes=0)
    found = Trial(recipe=tried, outcome=Outcome.OK, error=FAITHFUL, timing=timing, footprint=footprint)
    return found.model_copy(update=changes)


class Clock:
    """Seconds, by ``clock()``."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s
        self.slept_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


class SimulatedDeadline:
    """``Deadline`` by a clock of the test's."""

    def __init__(self, clock: Clock) -> None:
        self.at, self._clock = math.inf, clock

    @property
    def left_s(self) -> float:
        return max(0.0, self.at - self._clock())

    @contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        outside = self.at
        self.at = narrowed = min(outside, self._clock() + limit_s)
        try:
            yield
        finally:
            if self.at == narrowed:
                self.at = outside


@dataclass(kw_only=True)
class Does:
    """What a process of a recipe does."""

    ms: float | Callable[[int], float] = REFERENCE_MS
    """What a call takes, or what it takes in which turn."""
    mib: int = 10
    error: ErrorReport | None = FAITHFUL
    saved: Saved = SAVED
    at_once: AskedAtOnce = SERVES_CALLERS
    ends: Mapping[str, tuple[Outcome, str]] = field(default_factory=dict)
    """How it ends, by what it is asked for: start, warm, turn, save, callers."""
    turns: int = 0
    """After so many, where it ends in a turn."""
    cut_off: bool = False
    """It ends since the study's time is over."""
    stage: str = ""
    """Where it ends; what it is asked for by default."""
    builds_s: float = 0.0
    """How long it is built."""

    @classmethod
    def faster(cls, speedup_x: float, **rest: Any) -> Does:
        return cls(ms=REFERENCE_MS / speedup_x, **rest)


class Log:
    """Of what a process printed: nothing."""

    def log_tail(self, _limit: int) -> str:
        return ""


class Process:
    """Stands for a ``RunningTrial``."""

    build_s, first_call_ms, energy_mj, start_ms = 0.1, 20.0, None, 500.0
    passes = 1
    files = None
    phase, _limit_s = "build", 0.0
    child = Log()

    def __init__(self, clock: Clock, name: str, recipe: Recipe, does: Does) -> None:
        self.name, self.recipe, self.does, self._clock = name, recipe, does, clock
        self.notes: tuple[str, ...] = ()
        self.limits = Limits()
        self.phases_s = {"start": 1.0, "verify": 0.5}
        self.error = does.error
        self.ended: TrialEnded | None = None
        self.asked: list[str] = []
        self.turns = 0
        self._left_s = does.builds_s

    @property
    def closed(self) -> bool:
        return "close" in self.asked

    @property
    def turn_s(self) -> float:
        return self._ms * 1e-3

    @property
    def _ms(self) -> float:
        return self.does.ms(self.turns) if callable(self.does.ms) else self.does.ms

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def build(self, limits: Limits) -> None:
        self._asked_for("start")
        self.limits = limits
        took_s = min(self._left_s, limits.timeout_s)
        self._clock.now_s, self._left_s, self._limit_s = self._clock.now_s + took_s, self._left_s - took_s, took_s
        self.phases_s["build"] = self.phases_s.get("build", 0.0) + took_s
        if self._left_s > 0:
            raise GaveWay(self) if limits.gives_way else self.end(Outcome.TIMED_OUT, "it took too long", "build")  # type: ignore[arg-type]

    def warm(self, **_limit: float) -> None:
        self._asked_for("warm")

    def turn(self, passes: int) -> Turn:
        self._asked_for("turn")
        ms = self._ms
        self.turns += 1
        self._clock.now_s += ms * passes * 1e-3
        return Turn(times_ms=(ms,), passes=passes, wall_s=ms * passes * 1e-3)

    def footprint(self) -> Footprint:
        self._asked_for("footprint")
        return Footprint(idle_bytes=self.does.mib << 20, peak_bytes=0)

    def save(self, folder: Path, ask_s: float) -> Saved:
        self._asked_for("save")
        return self.does.saved

    def asked_at_once(self, callers: int) -> AskedAtOnce:
        self._asked_for("callers")
        return self.does.at_once

    def take_starts(self, _start_again: Callable[[], Any], files: Path | None, samples: int) -> None:
        self._asked_for("starts")

    def rest(self) -> None:
        self._asked_for("rest")

    def close(self) -> None:
        self.asked.append("close")

    def end(self, outcome: Outcome, reason: str, stage: str, *, cut_off: bool = False) -> TrialEnded:
        ending = Ending(outcome=outcome, reason=reason, stage=stage)
        self.ended = TrialEnded(ending, self, cut_off=cut_off)  # type: ignore[arg-type]
        self.close()
        return self.ended

    def _asked_for(self, what: str) -> None:
        if self.ended is not None:
            raise self.ended
        self.asked.append(what)
        if what in self.does.ends and (what != "turn" or self.turns >= self.does.turns):
            outcome, reason = self.does.ends[what]
            raise self.end(outcome, reason, self.does.stage or what, cut_off=self.does.cut_off)


class Pool:
    """Stands for a ``WorkerPool``. Plant in ``built`` what processes of a recipe do, in ``loaded`` what those do that
    are loaded from its files: each process takes the next of its list, and the last one stays."""

    def __init__(self, clock: Clock, folder: Path) -> None:
        self.clock, self.folder = clock, folder
        self.deadline = SimulatedDeadline(clock)
        self.export_s = self.rest_s = 0.0
        self.built: dict[Recipe, list[Does]] = defaultdict(lambda: [Does()])
        self.loaded: dict[Recipe, list[Does]] = {}
        self.processes: list[Process] = []
        """All that were started."""
        self.limits: list[Limits] = []
        """Of each of them."""
        self.loaded_recipes: list[Recipe] = []
        """Of those that were loaded from files."""
        self.checked: list[Purpose | None] = []
        """What each of those was verified for."""
        self.rest_of_truth: dict[Recipe, Does] = {}
        """What the process does that makes it, by the recipe that needs it first."""

    def complete_truth(self, recipe: Recipe, facts: Facts, limits: Limits, on_phase: Callable[[str], None]) -> Facts:
        if (does := self.rest_of_truth.get(recipe)) is not None:
            on_phase("truth")
            Process(self.clock, "truth", Recipe(), does).build(limits)
        return facts

    def start(self, recipe: Recipe, _facts: Facts, limits: Limits, on_phase: Callable[[str], None]) -> Process:
        on_phase("build")
        return self._started(recipe.label, recipe, self.built[recipe], limits)

    def start_artifact(
        self, folder: Path, recipe: Recipe, _facts: Facts, limits: Limits, *, check: Purpose | None, name: str = ""
    ) -> Process:
        self.loaded_recipes.append(recipe)
        self.checked.append(check)
        does = self.loaded.setdefault(recipe, list(self.built[recipe]))
        return self._started(name or folder.name, recipe, does, limits)

    def _started(self, name: str, recipe: Recipe, does: list[Does], limits: Limits) -> Process:
        self.limits.append(limits)
        process = Process(self.clock, name, recipe, does.pop(0) if len(does) > 1 else does[0])
        self.processes.append(process)
        process.build(limits)
        return process

    def go_on(self, process: Process, limits: Limits) -> Process:
        process.build(limits)
        return process


class Said(Progress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.phases: list[tuple[Recipe, str]] = []
        self.ended: list[Trial] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def trial_phase(self, recipe: Recipe, phase: str) -> None:
        self.phases.append((recipe, phase))

    def trial_ended(self, trial: Trial) -> None:
        self.ended.append(trial)


def signature() -> Signature:
    layer, sample = nn.Linear(2, 2), Inputs((torch.ones(1, 2),))
    return Signature.of(layer, [sample], [layer(*sample.args)])


def open_study(
    folder: Path,
    *trials: Trial,
    clock: Clock | None = None,
    loading_s: float = 0.0,
    pace: Pace = USUAL,
    facts: Facts | None = None,
    earlier_ms: tuple[float, ...] = (),
    firsts: tuple[Recipe, ...] = (),
    **settings: Any,
) -> OpenStudy:
    """A study that has these trials in its journal, with a ``Pool`` whose processes are as fast as these say.
    ``firsts``: what is tried before all else."""
    clock = clock or Clock()
    pool, chosen = Pool(clock, folder / "pool"), Settings(**{"effort": "thorough", **settings})
    pool.folder.mkdir()
    facts = facts or Facts(machine=MACHINE, module_class="Net")
    subject = TunedSubject(pool, "net.py:make", facts, signature(), chosen)  # type: ignore[arg-type]
    header = {"id": "", "subject": subject.name, "facts": facts, "settings": chosen.as_json()}
    log = Journal.open(folder / "journal.sqlite").study("key", Study(**header), fresh=True)
    started = clock()
    clock.now_s += loading_s
    budget = TimeBudget(chosen, pass_ms=facts.latency_ms, started=started, loaded=clock(), pace=pace, clock=clock)
    search = Search(facts, chosen, all_techniques(), trials, firsts=firsts or None, clock=clock)
    for each in trials:
        log.append(each)
        if each.timing is not None:
            pool.built[each.recipe] = [Does(ms=REFERENCE_MS / each.timing.speedup_x.median)]
    if (reference := log.last(REFERENCE_RECIPE)) is not None:
        budget.know_reference(reference.phases_s)
    notes: list[str] = []
    progress = Said()
    stopwatch = Stopwatch(
        chosen,
        budget,
        pace=pace,
        earlier_ms=earlier_ms,
        deadline_s=lambda: pool.deadline.left_s,
        clock=clock,
        sleep=clock.sleep,
    )
    return OpenStudy(
        subject=subject,
        log=log,
        search=search,
        experience=Experience(),
        budget=budget,
        stopwatch=stopwatch,
        processes=WarmProcesses(subject, budget, notes, progress.trial_phase),
        progress=progress,
        pace=pace,
        clock=clock,
        notes=notes,
    )


def compose(study: OpenStudy, folder: Path, program: Recipe, *, ran: bool = True) -> None:
    """Files of a program of one part, which stand for this recipe; ``ran``: its trial was from them."""
    whole = folder / "composed.togi"
    part = part_folder(whole, 0)
    part.mkdir(parents=True)
    key = PartKey(path="layer")
    entry = PartEntry(key=key, module="Linear", effects=Effects(), weights="")
    known: dict[str, Any] = {"subject": study.subject.name, "recipe": program, "signature": signature()}
    known |= {"facts": study.subject.facts, "proof": trial(program, 2.0)}
    write_manifest(part, **known, chain=(Link(engine="openvino", folder="openvino", meta={}),))
    write_manifest(whole, **known, parts=(entry,))
    study.processes.compose(program, whole)
    if ran:
        study.processes.warm(program)


def pool_of(study: OpenStudy) -> Pool:
    pool: Any = study.subject.pool
    assert isinstance(pool, Pool)
    return pool
