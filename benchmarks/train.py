"""The tuned training step next to what a user would do by hand, all of them taking turns in one run.

    python -m benchmarks.train [--models lstm unet ...] [--time-limit 300] [--budget 90] [--threads 1] [--bf16]
        [--again]

Eight models with their optimizers (``train_models.py``). Each is tuned within ``--time-limit`` seconds. Then its step
as it is, the ways by hand and togi's recipe take turns for ``--budget`` seconds, for twelve rounds at least. The ways:

- freed memory kept, and ``channels_last``
- ``torch.compile`` of forward and loss, that with the fused optimizer, with ``max-autotune``, and with half of its
  activations kept (``activation_memory_budget``)
- ``torch.utils.checkpoint`` round each block
- the best exact way of each model by hand, known afterwards

``--bf16`` tunes once more, with ``--allow bf16 --max-error 50%``, for a way of its own. Every way is proven as a trial
is. A compiled step with dropout draws other random numbers than eager, as a user has it: then it is timed, and not
proven.

The rows of a model are written when it is done. A run that was ended goes on where it was: models with rows are left
out (``--again`` measures them anew), and trials of the one that was not done are in the journal next to the rows.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rows import measured_here, measured_on, put_rows, read_rows
from benchmarks.train_models import BLOCKS

from togi import api
from togi.core.quantities import plural
from togi.core.recipe import PLAIN_STEP_RECIPE
from togi.core.records import ErrorReport, Facts, Footprint, Interval, Recipe
from togi.core.version import version
from togi.decide.faithful import MAX_UNITS
from togi.decide.faster import Criterion
from togi.machine.describe import machine
from togi.measure import RaceResult, race
from togi.render.gains import gains, nearly_all
from togi.study.result import StudyResult
from togi.techniques import recipe
from togi.techniques.registry import is_exact
from togi.worker.job import TRUTH_FOLDER
from togi.worker.messages import Purpose
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, RunningTrial, TrialEnded

HERE = Path(__file__).parent
DATA = HERE / "data" / "train.json"
MODELS = ["lstm", "resnet18", "unet", "mobilenetv3", "vit_tiny", "resnet50", "gpt2_4", "bert_mini"]
"""The quickest first."""
EAGER, KEPT, LAYOUT, COMPILED, COMPILED_FUSED, AUTOTUNED, HALF_KEPT, CHECKPOINTED, BY_HAND, OURS, OURS_BF16 = WAYS = (
    "plain eager",
    "eager, memory kept",
    "channels_last",
    "compile",
    "compile, fused",
    "compile, max-autotune",
    "compile, activation_memory_budget 0.5",
    "checkpointed blocks",
    "best by hand",
    "togi",
    "togi, bf16 allowed",
)
ALLOWED: dict[str, dict[str, Any]] = {OURS: {}, OURS_BF16: {"allow": "bf16", "max_error": "50%"}}
"""What togi is allowed besides exact recipes."""
COMPILED_LOSS: dict[str, Any] = {"torch_compile": {"of": "loss"}}
LAST_FUSED: dict[str, Any] = {"channels_last": {}, "fused": {}, "kept_memory": {}}
COMPILED_ALL: dict[str, Any] = {**COMPILED_LOSS, "fused": {}, "kept_memory": {}}
BEST: dict[str, dict[str, Any]] = {
    "resnet18": LAST_FUSED,
    "resnet50": LAST_FUSED,
    "mobilenetv3": LAST_FUSED,
    "unet": LAST_FUSED,
    "vit_tiny": COMPILED_ALL,
    "gpt2_4": COMPILED_ALL,
    "bert_mini": {"fused": {}, "kept_memory": {}},  # micro-batches are faster, and the mean over masked words is wrong
    "lstm": {"fused": {}, "kept_memory": {}},
}
"""The best exact way by hand, measured on 2026-11-25 with one thread."""
ROUNDS = 12
NARROW_X = 1.03
"""A race ends when all intervals are as narrow as this."""
LIMITS = Limits(timeout_s=1200)
EVERYBODY = Criterion(margin=1e9)
"""A margin that no difference exceeds: nobody leaves the race."""
MIB = 1 << 20
Ends = tuple[float, float, float]
"""Median, low and high."""


@dataclass
class Row:
    """One way to run the step of one model. What was not measured is None."""

    model: str
    way: str
    threads: int
    recipe: str = ""
    ms: Ends | None = None
    over_eager: Ends | None = None
    over: dict[str, Ends] = field(default_factory=dict)
    """Of togi's recipe: how many times as fast it is as each other way, in the same rounds."""
    allocator_mib: float | None = None
    """Peak of torch's allocator in a step."""
    process_mib: float | None = None
    """What the process holds at the peak of a step, beyond what it held before the step was built."""
    proof: str = ""
    first_step_s: float | None = None
    """With what was compiled in it."""
    first_gain_s: float | None = None
    nearly_s: float | None = None
    """90 % of what was gained in the end. Seconds from the start of the command, loading included."""
    search_s: float | None = None
    time_limit_s: float | None = None
    failed: str = ""
    """Why there are no figures."""
    togi: str = field(default_factory=version)
    measured: str = field(default_factory=measured_here)

    @property
    def id(self) -> str:
        return f"{self.model}, {self.way}, {self.threads} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS, metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for tuning one model")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds for comparing on one model")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS, which is not searched then")
    parser.add_argument("--bf16", action="store_true", help="tune once more, with bf16 allowed")
    parser.add_argument("--json", type=Path, default=DATA)
    parser.add_argument("--again", action="store_true", help="measure models anew that have rows")
    options = parser.parse_args()
    if options.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    threads = machine().threads
    known = read_rows(options.json)
    last = OURS_BF16 if options.bf16 else OURS
    for model in options.models:
        if not options.again and any(row["way"] == last and _is_of(row, model, threads) for row in known):
            print(f"{model} on {threads} threads has rows already (--again measures it anew)", flush=True)
            continue
        rows = rows_of(model, options, threads)
        put_rows(options.json, [{"id": row.id, **asdict(row)} for row in rows], by="id")
        print("\n".join(map(line, rows)), flush=True)
    print(table(read_rows(options.json)))


def _is_of(row: dict[str, Any], model: str, threads: int) -> bool:
    return (row["model"], row["threads"]) == (model, threads)


def rows_of(model: str, options: argparse.Namespace, threads: int) -> list[Row]:
    """Tune the model, then race what was found and the ways by hand."""
    journal = options.json.with_suffix(f".{model}.{threads}.sqlite")
    found = [tuned(model, way, options, threads, journal) for way in (OURS, *[OURS_BF16] * options.bf16)]
    with ExitStack() as stack:
        pool = stack.enter_context(pool_of(model))
        facts = pool.make_truth(pool.survey(LIMITS, _silent)[0].facts, LIMITS, _silent)
        rows = Raced(pool, facts, options.budget, stack=stack).rows(model, threads, found)
    for file in journal.parent.glob(f"{journal.name}*"):
        file.unlink()
    return rows


def tuned(model: str, way: str, options: argparse.Namespace, threads: int, journal: Path) -> tuple[StudyResult, Row]:
    """What togi finds, with what it is allowed."""
    fixed = ("threads",) if options.threads is not None else ()
    limit_s = options.time_limit
    began = time.monotonic()
    result = api.tune(
        locator_of(model), train=True, time_limit_s=limit_s, journal=journal, without=fixed, **ALLOWED[way]
    )
    row = Row(model, way, threads, result.best.recipe.label, time_limit_s=limit_s)
    row.search_s = time.monotonic() - began
    if found := gains(result.record):
        row.first_gain_s, row.nearly_s = found[0].ended_s, nearly_all(found).ended_s
    print(f"{model}, {way}: {result.record.verdict} ({row.search_s:.0f} s)", flush=True)
    return result, row


def locator_of(factory: str) -> str:
    return f"{HERE / 'train_models.py'}:{factory}"


def pool_of(factory: str) -> WorkerPool:
    ref = SubjectRef.here("locator", locator_of(factory))
    return WorkerPool(ref, machine(), device="cpu", seed=0, train=True)


def _silent(_phase: str) -> None:
    """Nobody looks."""


def ways_of(model: str, facts: Facts) -> dict[str, Recipe]:
    """What a user would write, by name."""
    named: dict[str, dict[str, Any]] = {
        EAGER: {},
        KEPT: {"kept_memory": {}},
        LAYOUT: {"channels_last": {}},
        COMPILED: COMPILED_LOSS,
        COMPILED_FUSED: {**COMPILED_LOSS, "fused": {}},
        HALF_KEPT: {**COMPILED_LOSS, "recompute": {"keep": 0.5}},
        BY_HAND: BEST[model],
    }
    if not any("conv" in name for name in facts.functions):
        del named[LAYOUT]
    return {way: recipe(**choices, plain_step={}) for way, choices in named.items()}


def other_subjects(model: str) -> dict[str, str]:
    """Ways that are code of the user's own: the factory of each in ``train_models.py``."""
    found = {AUTOTUNED: f"{model}_max_autotune"}
    return found | {CHECKPOINTED: f"{model}_checkpointed"} if model in BLOCKS else found


@dataclass
class Raced:
    """One race of all ways of one model."""

    pool: WorkerPool
    facts: Facts
    budget_s: float
    standing: dict[str, RunningTrial] = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)
    """Ends the processes of what is another subject."""

    def rows(self, model: str, threads: int, tuned: Sequence[tuple[StudyResult, Row]]) -> list[Row]:
        rows = {way: Row(model, way, threads, found.label) for way, found in ways_of(model, self.facts).items()}
        for way, found in ways_of(model, self.facts).items():
            self.start(rows[way], functools.partial(self.by_hand, found))
        for way, factory in other_subjects(model).items():
            rows[way] = Row(model, way, threads, PLAIN_STEP_RECIPE.label)
            # compiled code draws other numbers
            checked = way != AUTOTUNED or not self.facts.random
            self.start(rows[way], functools.partial(self.of_another, factory, checked=checked))
        for result, row in tuned:
            rows[row.way] = row
            artifact, best = result.best.artifact, result.best.recipe
            if artifact is not None and not best.is_reference:
                self.start(row, functools.partial(self.recorded, artifact, best), exact=is_exact(best))
        if EAGER not in self.standing:
            return [*rows.values()]
        raced = self.take_turns()
        for way, running in self.standing.items():
            self.fill(rows[way], raced)
            if rows[way].ms is not None:
                put_memory(rows[way], running)
        for result, row in tuned:
            if row.ms is not None:
                row.over = self.over(row.way, raced)
            if result.best.recipe.is_reference:
                self.as_it_was(row, rows[EAGER])
                row.over = self.over(EAGER, raced)
        return [*rows.values()]

    def take_turns(self) -> RaceResult:
        """All that stand, plain eager among them."""
        others = [running for way, running in self.standing.items() if way != EAGER]
        base = self.standing[EAGER]
        return race(
            others, base, budget_s=self.budget_s, seed=0, criterion=EVERYBODY, least_rounds=ROUNDS, enough=_narrow
        )

    def over(self, own: str, raced: RaceResult) -> dict[str, Ends]:
        """How many times as fast as each other way it is."""
        pairs = {way: raced.speed_x(own, way) for way in self.standing if way not in (own, *ALLOWED)}
        return {way: ends for way, interval in pairs.items() if (ends := _ends(interval)) is not None}

    def by_hand(self, found: Recipe) -> RunningTrial:
        if self.facts.random and "torch_compile" in found.techniques:
            return self.pool.start_unchecked(found, LIMITS)
        return self.pool.start(found, self.facts, LIMITS, _silent)

    def of_another(self, factory: str, *, checked: bool = True) -> RunningTrial:
        """The step of another subject as it is. ``checked``: the proof is that it does what the original does."""
        pool = self.stack.enter_context(pool_of(factory))
        if not checked:
            return pool.start_unchecked(PLAIN_STEP_RECIPE, LIMITS)
        (pool.folder / TRUTH_FOLDER).symlink_to(self.pool.folder / TRUTH_FOLDER)
        return pool.start(PLAIN_STEP_RECIPE, self.facts, LIMITS, _silent)

    def recorded(self, folder: Path, found: Recipe) -> RunningTrial:
        """A recipe, with its plan if it has one, from its record."""
        return self.pool.start_artifact(folder, found, self.facts, LIMITS, check=Purpose.PROOF)

    def start(self, row: Row, begin: Any, *, exact: bool = True) -> None:
        """Build it, prove it and warm it up. The row says why where that fails."""
        try:
            running: RunningTrial = begin()
            running.warm()
        except TrialEnded as ended:
            row.failed = str(ended)
            return
        running.name, row.proof = row.way, _proof(running.error, exact)
        row.first_step_s = running.first_call_ms / 1e3
        self.standing[row.way] = running

    def fill(self, row: Row, raced: RaceResult) -> None:
        """The figures of its turns."""
        entry = raced.entry(row.way)
        if entry.latency_ms is None:
            row.failed = entry.left_because
            return
        row.ms, row.over_eager = _ends(entry.latency_ms), _ends(entry.speedup_x)

    def as_it_was(self, ours: Row, eager: Row) -> None:
        """Nothing was found, so what togi hands back is the step as it is."""
        ours.ms, ours.proof, ours.over_eager = eager.ms, eager.proof, (1.0, 1.0, 1.0)
        ours.allocator_mib, ours.process_mib = eager.allocator_mib, eager.process_mib


def put_memory(row: Row, running: RunningTrial) -> Footprint | None:
    """What it takes in a step, as the process and as torch's allocator see it. None where it was not measured."""
    try:
        footprint = running.footprint()
    except TrialEnded as ended:
        row.failed = f"its memory was not measured: {ended}"
        return None
    row.process_mib = footprint.total_bytes / MIB
    allocator = footprint.allocator_peak_bytes
    row.allocator_mib = None if allocator is None else allocator / MIB
    return footprint


def _narrow(speedup_x: Interval) -> bool:
    return speedup_x.low > 0 and speedup_x.high / speedup_x.low <= NARROW_X


def _ends(interval: Interval | None) -> Ends | None:
    """None where too few rounds gave it no ends."""
    if interval is None or not 0 < interval.low <= interval.high < math.inf:
        return None
    return interval.median, interval.low, interval.high


def _proof(report: ErrorReport | None, exact: bool) -> str:
    if report is None:
        return "none: it draws other random numbers"
    if not exact and not report.problems:
        return f"approximate: off by {report.rmse:.0%} at most"
    if not report.faithful:
        return f"wrong: {next(iter(report.problems), f'{report.units:.0f} units')}"
    return "to the bit" if report.units == 0 else f"{report.units:.1g} of {MAX_UNITS:g} units"


def line(row: Row) -> str:
    ms = "-" if row.ms is None else f"{row.ms[0]:.1f} ms"
    return f"  {row.way:<20} {ms:>10} {times(row.over_eager):>24}  {row.proof}  {row.recipe}  {row.failed}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, with the means below."""
    if not rows:
        return "Not measured yet."
    lines = [
        "| model | threads | way | step ms | over plain eager | peak MiB (process) | proof | first step s "
        "| first gain, 90 %, all of the search (s) | recipe |",
        "|---|--:|---|--:|---|--:|---|--:|---|---|",
    ]
    for row in sorted(rows, key=_place):
        ms = "-" if row["ms"] is None else f"{row['ms'][0]:.1f}"
        memory = f"{number(row['allocator_mib'])} ({number(row['process_mib'])})"
        first = "-" if row["first_step_s"] is None else f"{row['first_step_s']:.1f}"
        soon = [number(row[name]) for name in ("first_gain_s", "nearly_s", "search_s")]
        way = f"**{row['way']}**" if row["way"] in ALLOWED else row["way"]
        lines.append(
            f"| {row['model']} | {row['threads']} | {way} | {ms} | {times(row['over_eager'])} | {memory} | "
            f"{row['proof'] or row['failed']} | {first} | {', '.join(soon) if row['way'] in ALLOWED else ''} | "
            f"`{row['recipe']}` |"
        )
    lines.append("")
    for threads in sorted({row["threads"] for row in rows}):
        for own in ALLOWED:
            lines += summary([row for row in rows if row["threads"] == threads and row["way"] == own], threads, own)
    lines.append(measured_on(rows))
    return "\n".join(lines)


def _place(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["threads"], MODELS.index(row["model"]), WAYS.index(row["way"])


def summary(ours: Sequence[dict[str, Any]], threads: int, own: str) -> Iterator[str]:
    """How togi's recipes stand to each other way, over the models on which both were measured."""
    allowed = "" if own == OURS else " with bf16 allowed"
    for way in WAYS:
        found = [x for row in ours if (x := _over(row, way)) is not None]
        if found:
            yield (
                f"On {plural(threads, 'thread')} togi's step{allowed} is {statistics.geometric_mean(found):.2f} x as "
                f"fast as {way} (geometric mean of {plural(len(found), 'model')}, lowest {min(found):.2f})."
            )
    over_eager = [x for row in ours if (x := _over(row, EAGER)) is not None]
    if over_eager:
        yield f"At least 1.10 x over plain eager{allowed} on {sum(x >= 1.1 for x in over_eager)} of {len(over_eager)}."
    if soon := [row["first_gain_s"] for row in ours if row["first_gain_s"] is not None]:
        after_s = f"{statistics.median(soon):.0f} s (median of {len(soon)}), at most {max(soon):.0f} s"
        yield f"First gain{allowed} after {after_s}."


def _over(row: dict[str, Any], way: str) -> float | None:
    """None where one of the two was not measured."""
    ends = row["over_eager"] if way == EAGER else row["over"].get(way)
    return None if ends is None else float(ends[0])


def times(ends: Iterable[float] | None) -> str:
    if ends is None:
        return "-"
    median, low, high = ends
    return f"{median:.2f} x ({low:.2f} to {high:.2f})"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


if __name__ == "__main__":
    main()
