"""The tuned training step under limits of memory, next to what a user would do by hand within them, in one run a model.

    python -m benchmarks.train_limits [--models resnet50 ...] [--percent 75 50] [--time-limit 300] [--budget 90]
        [--threads 1] [--again]

A limit of 50 % is what the process of the step as it is holds between two steps, and half of what it takes beyond that
at the peak of one; ``--max-memory`` counts the same. For each limit togi tunes the step. Then these take turns:

- the step as it is, which no limit admits
- ``torch.utils.checkpoint`` round each block
- the batch in 2, 4 and 8 parts, in a loop of the user's own
- ``torch.compile`` of forward and loss, as it is and with these shares and none as ``activation_memory_budget``
- plans of ``togi fit`` at these shares and at half of the lowest
- togi's recipes

All are measured for memory. What is above the largest limit takes no turn, since nobody could use it. All but two are
proven as a trial is: compiled code draws other random numbers than eager, as a user has it, and parts of a batch are
judged as ``togi fit`` judges them (in eval mode, if the step draws). togi's time is compared with that of the fastest
way by hand that is within its limit and was not found wrong.

The figures of a model are written when it is done, and a model that has some is left out (``--again``).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks import train
from benchmarks.rows import measured_here, measured_on, put_rows, read_rows
from benchmarks.train import (
    CHECKPOINTED,
    COMPILED,
    COMPILED_LOSS,
    EAGER,
    HERE,
    LIMITS,
    MIB,
    Ends,
    Raced,
    locator_of,
    pool_of,
    put_memory,
)
from benchmarks.train_models import BLOCKS

from togi import api
from togi.artifact.training import TrainingRecipe
from togi.core.errors import TogiError
from togi.core.quantities import first_line, plural
from togi.core.recipe import PLAIN_STEP_RECIPE
from togi.core.records import Recipe
from togi.footprint.fit.training.micro_batch_proof import judge
from togi.footprint.fit.training.planner import TrainingPlanner
from togi.footprint.step import Step, make_step
from togi.machine.describe import machine
from togi.study.result import StudyResult
from togi.techniques import recipe, technique
from togi.worker.locate import locate
from togi.worker.supervise import RunningTrial

DATA = HERE / "data" / "train_limits.json"
MODELS = [*train.MODELS, "gpt2_12"]
USUAL = (75, 50)
PERCENT = {"gpt2_12": (30,)}
FIT, OURS = "togi fit", "togi"


@dataclass
class Row(train.Row):
    """One way to run the step of one model."""

    percent: int | None = None
    """Of a recipe of togi's: the limit that it was made for."""
    right: bool | None = None
    """None: it draws other random numbers, or holds for these rows alone."""
    planned_s: float | None = None
    best: str = ""
    """Of a recipe of togi's within its limit: the fastest way by hand that is within it, too, and not found wrong."""
    over_best: Ends | None = None
    """How many times as fast as that."""


@dataclass
class Model:
    """All ways of one model, which took turns in one run."""

    model: str
    threads: int
    limits_mib: dict[str, float]
    """By percent: what the process may hold at its peak."""
    ways: list[Row]
    measured: str = field(default_factory=measured_here)

    @property
    def id(self) -> str:
        return f"{self.model}, {self.threads} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS, metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--percent", nargs="*", type=int, help="limits; default 75 and 50, and 30 of gpt2_12")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for tuning one model within one limit")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds for comparing on one model")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS, which is not searched then")
    parser.add_argument("--json", type=Path, default=DATA)
    parser.add_argument("--again", action="store_true", help="measure models anew that have figures")
    options = parser.parse_args()
    if options.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    threads = machine().threads
    torch.set_num_threads(threads)  # for plans, which are made here
    for name in options.models:
        known = {row["id"] for row in read_rows(options.json)}
        if not options.again and Model(name, threads, {}, []).id in known:
            print(f"{name} on {threads} threads has figures already (--again measures it anew)", flush=True)
            continue
        found = measure(name, options, threads)
        put_rows(options.json, [{"id": found.id, **asdict(found)}], by="id")
        print(table([asdict(found)]), flush=True)
    print(table(read_rows(options.json)))


def measure(model: str, options: argparse.Namespace, threads: int) -> Model:
    """Tune the model within each limit, then race togi's recipes and the ways by hand."""
    percent = sorted(options.percent or PERCENT.get(model, USUAL), reverse=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="train-limits-")))
        pool = stack.enter_context(pool_of(model))
        facts = pool.make_truth(pool.survey(LIMITS, _silent)[0].facts, LIMITS, _silent)
        limited = Limited(model, threads, percent, Raced(pool, facts, options.budget, stack=stack), folder)
        limited.start_eager()
        tuned = {each: limited.tune(each, options) for each in percent}
        if model in BLOCKS:
            limited.start_checkpointed()
        limited.start_parts()
        limited.start_compiled()
        limited.start_plans()
        for each, result in tuned.items():
            if result is not None:
                limited.start_tuned(each, result)
        limited.take_turns()
        limits = {str(each): limited.limit_mib(each) for each in percent}
        return Model(model, threads, limits, [*limited.rows.values()])


def _silent(_phase: str) -> None:
    """Nobody looks."""


@dataclass
class Limited:
    """The ways of one model, started one by one and measured for memory, and then raced."""

    model: str
    threads: int
    percent: Sequence[int]
    """The limits, the largest first."""
    raced: Raced
    folder: Path
    """For records of plans and for journals."""
    rows: dict[str, Row] = field(default_factory=dict)
    """By way."""
    idle_mib: float = 0.0
    """What the step as it is holds between two steps."""
    peak_mib: float = 0.0
    """What it takes beyond that."""

    def limit_mib(self, percent: int) -> float:
        return self.idle_mib + percent / 100 * self.peak_mib

    def row(self, way: str, found: Recipe | None = None) -> Row:
        """A new one."""
        row = self.rows[way] = Row(self.model, way, self.threads, "" if found is None else found.label)
        return row

    def start(self, row: Row, begin: Callable[[], RunningTrial]) -> bool:
        """Start a way and measure its memory. False where it fails, or is above all limits: it is ended then."""
        self.raced.start(row, begin)
        running = self.raced.standing.get(row.way)
        if running is not None:
            row.right = None if running.error is None else running.error.faithful
            put_memory(row, running)
            if not within(asdict(row), self.limit_mib(self.percent[0])):
                self.raced.standing.pop(row.way).close()
        print(f"  {row.way}: {row.failed or f'{train.number(row.process_mib)} MiB, {row.proof}'}", flush=True)
        return row.way in self.raced.standing

    def start_eager(self) -> None:
        """The step as it is, by which the limits are known. Raises TrialEnded."""
        row = self.row(EAGER, PLAIN_STEP_RECIPE)
        running = self.raced.pool.start(PLAIN_STEP_RECIPE, self.raced.facts, LIMITS, _silent)
        self.raced.start(row, lambda: running)
        row.right = True
        footprint = put_memory(row, running)
        if footprint is None:
            raise RuntimeError(f"{self.model}: {row.failed}")
        self.idle_mib, self.peak_mib = footprint.idle_bytes / MIB, footprint.peak_bytes / MIB

    def tune(self, percent: int, options: argparse.Namespace) -> StudyResult | None:
        row = self.row(_tuned_for(percent))
        row.percent, row.time_limit_s = percent, options.time_limit
        began = time.monotonic()
        try:
            result = api.tune(
                locator_of(self.model),
                train=True,
                time_limit_s=options.time_limit,
                max_memory=int(self.limit_mib(percent) * MIB),
                journal=self.folder / f"{percent}.sqlite",
                without=("threads",) if options.threads is not None else (),
            )
        except TogiError as error:
            row.failed = str(error)
            return None
        row.search_s = time.monotonic() - began
        print(f"{self.model}, {percent} %: {result.record.verdict} ({row.search_s:.0f} s)", flush=True)
        return result

    def start_tuned(self, percent: int, result: StudyResult) -> None:
        row, best = self.rows[_tuned_for(percent)], result.record.best
        if best is None or best.is_reference or result.artifact is None:
            row.failed = result.record.verdict
            return
        row.recipe = best.label
        self.start(row, functools.partial(self.raced.recorded, result.artifact, best))

    def start_checkpointed(self) -> None:
        begin = functools.partial(self.raced.of_another, f"{self.model}_checkpointed")
        self.start(self.row(CHECKPOINTED, PLAIN_STEP_RECIPE), begin)

    def start_parts(self) -> None:
        for options in technique("micro_batches").options(self.raced.facts):
            parts = int(str(options["parts"]))
            row = self.row(f"{parts} micro-batches", PLAIN_STEP_RECIPE)
            begin = functools.partial(self.raced.of_another, f"{self.model}_in_{parts}_parts", checked=False)
            stands = self.start(row, begin)
            row.right, row.proof = judged_in_parts(_step(self.model), parts) if stands else (None, "")

    def start_compiled(self) -> None:
        for percent in (None, *self.percent, 0):
            kept: dict[str, Any] = {} if percent is None else {"recompute": {"keep": percent / 100}}
            found = recipe(**COMPILED_LOSS, **kept, plain_step={})
            way = COMPILED if percent is None else f"{COMPILED}, activation_memory_budget {percent / 100:g}"
            self.start(self.row(way, found), functools.partial(self.raced.by_hand, found))

    def start_plans(self) -> None:
        shares = [each / 100 for each in (*self.percent, self.percent[-1] / 2)]
        records = self.planned(shares)
        gc.collect()  # what planning held, before more processes are started
        for share, folder in records:
            found = recipe(recompute={"keep": share}, plain_step={})
            self.start(self.rows[_fit_at(share)], functools.partial(self.raced.recorded, folder, found))

    def planned(self, shares: Sequence[float]) -> list[tuple[float, Path]]:
        """A folder with the record of a plan, by the share of the step's tensors that it may keep."""
        step = _step(self.model)
        found: list[tuple[float, Path]] = []
        began = time.monotonic()
        rows = [self.row(_fit_at(share)) for share in shares]
        try:
            planner = TrainingPlanner(step)
            for row, share in zip(rows, shares, strict=True):
                static, peak = planner.static_bytes, planner.unmodified.peak_bytes
                aim = int(static + share * (peak - static))
                plan = planner.plan(aim, timed=False).plan
                row.planned_s, row.recipe = time.monotonic() - began, str(plan)
                training = dataclasses.replace(step.training, plan=plan.model_copy(update={"architecture": {}}))
                folder = self.folder / f"plan-{share:g}"
                folder.mkdir()
                label = recipe(recompute={"keep": share}, plain_step={})
                TrainingRecipe.of(label, training, self.raced.facts).write(folder)
                found.append((share, folder))
        except Exception as error:  # foreign code runs here: the run goes on with the other ways
            for row in rows[len(found) :]:
                row.failed = first_line(error)
        return found

    def take_turns(self) -> None:
        raced = self.raced.take_turns()
        for way, running in self.raced.standing.items():
            self.raced.fill(self.rows[way], raced)
            put_memory(self.rows[way], running)  # as it is after many steps
        for row in self.rows.values():
            if row.percent is None or row.ms is None:
                continue
            row.over = self.raced.over(row.way, raced)
            limit = self.limit_mib(row.percent)
            best = best_by_hand([*self.rows.values()], limit) if within(asdict(row), limit) else None
            if best is not None:
                row.best, row.over_best = best.way, row.over.get(best.way)


def _tuned_for(percent: int) -> str:
    return f"{OURS}, {percent} %"


def _fit_at(share: float) -> str:
    return f"{FIT}, {100 * share:g} %"


def _step(model: str) -> Step:
    return make_step(locate(locator_of(model)), train=True)


def judged_in_parts(step: Step, parts: int) -> tuple[bool | None, str]:
    """Whether parts of the batch train as all of it does, and in words."""
    try:
        proof = judge(step, parts)
    except Exception as error:  # foreign code runs here: the run goes on
        return None, f"not judged: {first_line(error)}"
    if proof.reason:
        return False, f"wrong: {proof.reason}"
    if proof.uneven:
        return None, f"for these rows alone: the loss is {proof.uneven.partition('. ')[0]}"
    if proof.approximate:
        return None, "none: it draws other random numbers"
    return True, f"gradients within {proof.relative_difference or 0:.1g}"


def within(row: dict[str, Any], limit_mib: float) -> bool:
    return row["process_mib"] is not None and row["process_mib"] <= limit_mib


def best_by_hand(rows: Sequence[Row], limit_mib: float) -> Row | None:
    """The fastest within the limit that was not found wrong; None where there is none."""
    fitting = [
        row
        for row in rows
        if row.percent is None and row.right is not False and row.ms is not None and within(asdict(row), limit_mib)
    ]
    return min(fitting, key=lambda row: row.ms[0], default=None)


def table(models: Sequence[dict[str, Any]]) -> str:
    """Markdown, with the targets below."""
    if not models:
        return "Not measured yet."
    lines = [
        "| model | threads | limits MiB | way | peak MiB of the process (of torch's allocator) | within | step ms "
        "| over plain eager | proof | over the fastest by hand | searched s | recipe |",
        "|---|--:|---|---|--:|---|--:|---|---|---|--:|---|",
    ]
    for model in sorted(models, key=lambda model: (model["threads"], MODELS.index(model["model"]))):
        limits = ", ".join(f"{percent} %: {mib:,.0f}" for percent, mib in model["limits_mib"].items())
        head = f"| {model['model']} | {model['threads']} | {limits} |"
        lines += [f"{head} {cells(row, model['limits_mib'])}" for row in model["ways"]]
    lines += ["", *summary(models), measured_on(models)]
    return "\n".join(lines)


def cells(row: dict[str, Any], limits_mib: dict[str, float]) -> str:
    ms = "-" if row["ms"] is None else f"{row['ms'][0]:,.1f}"
    memory = f"{train.number(row['process_mib'])} ({train.number(row['allocator_mib'])})"
    kept = ", ".join(f"{percent} %" for percent, mib in limits_mib.items() if within(row, mib)) or "no"
    compared = f"{train.times(row['over_best'])}, {row['best']}" if row["best"] else "-"
    searched = train.number(row["search_s"] if row["planned_s"] is None else row["planned_s"])
    way = row["way"] if row["percent"] is None else f"**{row['way']}**"
    return (
        f"{way} | {memory} | {kept} | {ms} | {train.times(row['over_eager'])} | {row['failed'] or row['proof']} | "
        f"{compared if row['percent'] is not None else ''} | {searched} | `{row['recipe']}` |"
    )


def summary(models: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Whether togi kept each limit, and how it stands to the fastest way by hand that did."""
    ours = [(row, model["limits_mib"]) for model in models for row in model["ways"] if row["percent"] is not None]
    for percent in sorted({row["percent"] for row, _ in ours}, reverse=True):
        rows = [(row, limits[str(percent)]) for row, limits in ours if row["percent"] == percent]
        right = [(row, limit) for row, limit in rows if row["ms"] is not None and row["right"] is not False]
        kept = [row for row, limit in right if within(row, limit)]
        alone = sum(not row["best"] for row in kept)
        over = [row["over_best"] for row in kept if row["over_best"] is not None]
        sentence = f"At {percent} % togi is within the limit on {len(kept)} of {plural(len(rows), 'row')}"
        if alone:
            sentence += f", on {alone} of them alone"
        if over:
            mean = statistics.geometric_mean(ends[0] for ends in over)
            sentence += (
                f"; its step is {mean:.2f} x as fast as that of the fastest way by hand (geometric mean of "
                f"{len(over)}, lowest {min(ends[0] for ends in over):.2f}), and slower beyond doubt on "
                f"{sum(ends[2] < 1 for ends in over)}"
            )
        yield f"{sentence}."


if __name__ == "__main__":
    main()
