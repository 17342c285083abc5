"""What ``python -m benchmarks.gpu`` runs, in which order, and what may run at the same time.

A job is a process: some rows of a part. What only asks whether togi is right may run beside others on the one device;
what measures time, or the memory of the whole device, runs alone. The order is that of proof per second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import final

from benchmarks.gpu_rows import Row, done, of_process, process_of

from togi.core.proven import with_rows
from togi.techniques.registry import all_marks


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """Rows of one part, in a process of their own."""

    part: str
    rows: str = ""
    """A regular expression that a row's name must match from its start; empty: every row of the part."""
    expected_s: float
    """On one H100 with 16 cores and cold caches: an estimate, in whose place ``by_record`` puts what was recorded."""
    limit_s: float
    """At the least."""
    beside: bool = False
    """Its rows do not depend on what else the device does."""
    by_row: bool = False
    """Each of its rows counts for itself: it is begun where there is not time for all."""

    @property
    def name(self) -> str:
        return f"{self.part} ({self.rows})" if self.rows else self.part


_QUICK = "(eager|cuda_graph|torchscript|torch_tensorrt|onnxruntime|openvino|ncnn)"
_PLAIN_MODE = r"torch_compile \(mode=default"
_FIRST_CLAIMS = "(cuda_graph|tf32|cudnn_benchmark|channels_last|fp16|bf16|attention_backend|expandable_segments)[,: ]"
_FIRST_TECHNIQUES = "(drop_|compute_|fuse_|fold_)"
"""About half of the seconds of those that start no process."""
_TIMED_TESTS = r"tests of (peak memory|timing)"


def _beside(part: str, rows: str = "", *, expected_s: float, limit_s: float) -> Job:
    return Job(part=part, rows=rows, expected_s=expected_s, limit_s=limit_s, beside=True)


JOBS = (
    _beside("environment", expected_s=15, limit_s=60),
    # the longest first, so that none of them is left alone at the end
    _beside("engines", r"torch_compile \(mode=(?!default).* on convolutions", expected_s=110, limit_s=170),
    _beside("engines", r"torch_compile .* on (?!convolutions)", expected_s=60, limit_s=170),
    _beside("techniques", _FIRST_TECHNIQUES, expected_s=60, limit_s=150),
    _beside("techniques", f"(?!{_FIRST_TECHNIQUES}|expandable_segments|parts)", expected_s=60, limit_s=150),
    _beside("techniques", "expandable_segments", expected_s=25, limit_s=90),
    _beside("tests", f"(?!{_TIMED_TESTS})", expected_s=60, limit_s=150),
    _beside("budgets", "prediction", expected_s=45, limit_s=150),
    _beside("budgets", "togi fit", expected_s=40, limit_s=150),
    _beside("processes", "(?!pause)", expected_s=50, limit_s=150),
    _beside("engines", _QUICK, expected_s=35, limit_s=150),
    _beside("engines", f"{_PLAIN_MODE}.* on convolutions", expected_s=35, limit_s=150),
    _beside("footprint", expected_s=20, limit_s=90),
    _beside("ops", "(?!.*time)", expected_s=25, limit_s=90),
    _beside("check", "(?!.*(sheet|measured))", expected_s=20, limit_s=60),
    _beside("numerics", expected_s=20, limit_s=60),
    _beside("graphs", "(?!against an exact)", expected_s=40, limit_s=90),
    Job(part="memory", expected_s=20, limit_s=60),
    Job(part="timer", expected_s=20, limit_s=90),
    Job(part="check", rows=".*(sheet|measured)", expected_s=15, limit_s=60),
    Job(part="tests", rows=_TIMED_TESTS, expected_s=12, limit_s=60),
    Job(part="seeds", expected_s=60, limit_s=150, by_row=True),
    Job(part="ops", rows=".*time", expected_s=25, limit_s=60),
    Job(part="claims", rows=_FIRST_CLAIMS, expected_s=110, limit_s=400, by_row=True),
    Job(part="graphs", rows="against an exact", expected_s=20, limit_s=90),
    Job(part="processes", rows="pause", expected_s=20, limit_s=60),
    # those that had no result on a device yet, and take longest: nothing else waits for them
    _beside("engines", "aot_inductor .* on convolutions", expected_s=110, limit_s=240),
    _beside("engines", "aot_inductor .* on (?!convolutions)", expected_s=80, limit_s=200),
    _beside("techniques", "parts", expected_s=200, limit_s=500),  # the H100 had no result within 150 s
    Job(part="tune", expected_s=1700, limit_s=4200, by_row=True),  # 14 rows; the first three took 120 s each
    Job(part="claims", rows=f"(?!{_FIRST_CLAIMS})", expected_s=280, limit_s=900, by_row=True),
    Job(part="budgets", rows="tune", expected_s=80, limit_s=200),
    Job(part="afterwards", expected_s=5, limit_s=30),
)
MODELS = ("resnet50", "mobilenetv3", "unet", "gpt2_step", "vit_b", "bert_base", "retinanet", "resnet50_batch64")
"""Of ``benchmarks/gpu_models.py``, for ``tune``: those that a limit of time should not leave out come first."""
PARTS = tuple(dict.fromkeys(job.part for job in JOBS))
KEPT_S = {"afterwards": 8.0}
"""Of the budget, for what comes last and must not be left out."""
LEAST_S = 20.0
"""What a job that counts by the row is given at the least."""
START_S = 10.0
"""What a process takes that finds all of its rows known: it imports torch."""
LIMIT_X = 2.5
"""A job is ended after so many times what it took when it was recorded: other software, a slower disk."""


def by_record(job: Job, recorded: Sequence[Row]) -> Job:
    """The job with what is expected of it by rows that a device recorded, and a limit that leaves room for that.

    They took what they took then, with the commit that each names: before 1bdb39f2 a process took 7 s to start on that
    device, and 0.03 s since. So what starts many, recorded earlier, may take less. The estimate stays the least where
    rows of the job were skipped or cut off there, or may be missing.
    """
    of_job = rows_of(job, recorded)
    took_s = sum(row["seconds"] for row in of_job)
    if not took_s:  # none were recorded; or tests, which had no seconds of their own then
        return job
    cut_off = any(row["part"] == job.part and row["row"] == process_of(job.rows) for row in recorded)
    whole = not job.by_row and not cut_off and all(row["result"] != "skip" for row in of_job)
    expected_s = START_S + took_s if whole else max(job.expected_s, START_S + took_s)
    return replace(job, expected_s=expected_s, limit_s=max(job.limit_s, LIMIT_X * expected_s))


def rows_of(job: Job, rows: Iterable[Row]) -> list[Row]:
    """Those that the job runs."""
    own = (row for row in rows if row["part"] == job.part and not of_process(row))
    return [row for row in own if re.match(job.rows, row["row"])]


def left_of(job: Job, before: Sequence[Row]) -> Job:
    """The job with what is expected of it where rows of ``before`` need not be run again."""
    known = set(done(before, job.part))
    took_s = {row["row"]: row["seconds"] for row in rows_of(job, before) if row["row"] in known}
    spared_s = sum(took_s.values())
    return replace(job, expected_s=max(min(START_S, job.expected_s), job.expected_s - spared_s))


def enough(job: Job, left_s: float) -> bool:
    """Whether it is begun with so much time left."""
    return left_s >= (min(LEAST_S, job.expected_s) if job.by_row else job.expected_s)


def expected_s(jobs: Iterable[Job], at_once: int) -> float:
    """Of all: those beside each other share the time, the others take turns."""
    return max((start_s + job.expected_s for job, start_s in _turns(jobs, at_once)), default=0.0)


def _turns(jobs: Iterable[Job], at_once: int, until_s: float = math.inf) -> Iterator[tuple[Job, float]]:
    """Each with the second of its start. One for which there is not enough left then takes no time."""
    now_s = 0.0
    for beside, group in groupby(jobs, key=lambda job: job.beside):
        free_at = [now_s] * (max(1, at_once) if beside else 1)
        for job in group:
            start_s = min(free_at)
            yield job, start_s
            if enough(job, until_s - start_s):
                free_at[free_at.index(start_s)] = min(until_s, start_s + job.expected_s)
        now_s = max(free_at)


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep is expected to come to."""

    expected_s: float
    """Of everything that was asked for."""
    budget_s: float
    at_once: int
    begun: tuple[Job, ...]
    takes_s: float
    """Of those that are begun, and what is kept for the end."""
    left_out: tuple[Job, ...]
    proven: frozenset[str]
    """Parts of togi that the rows that are run will prove, by what a device recorded."""
    recorded: bool
    """Whether a record says anything of that."""

    def __str__(self) -> str:
        at_once = f"{self.at_once} jobs at once where they may"
        told = [f"Expected are {self.expected_s:.0f} s ({at_once}), there are {self.budget_s:.0f} s."]
        if self.left_out:
            told.append(f"What will not fit: {', '.join(job.name for job in self.left_out)}.")
        if self.recorded:
            marks = [mark for mark in all_marks() if "cuda" in mark.days]
            told.append(
                f"By estimate {len(self.proven)} of {len(marks)} parts are proven then, after {self.takes_s:.0f} s: "
                "those whose rows passed when a device recorded them."
            )
        return " ".join(told)


def plan(
    jobs: Sequence[Job], budget_s: float, at_once: int, recorded: Sequence[Row] = (), before: Sequence[Row] = ()
) -> Plan:
    """What is expected of ``jobs`` within the budget.

    Args:
        recorded: rows of a device, by which parts are taken to be proven.
        before: rows that need not be run again.
    """
    until_s = budget_s - sum(KEPT_S.values())
    begun: list[Job] = []
    left_out: list[Job] = []
    known = {part: {*done(before, part)} for part in PARTS}
    passing = [row for row in before if row["row"] in known.get(row["part"], ())]
    ends_s = 0.0
    for job, start_s in _turns([job for job in jobs if job.part not in KEPT_S], at_once, until_s):
        if not enough(job, until_s - start_s):
            left_out.append(job)
            continue
        begun.append(job)
        at_s = start_s + START_S
        for row in rows_of(job, recorded):
            at_s += 0.0 if row["row"] in known[job.part] else row["seconds"]
            passing += [row] if not job.by_row or at_s <= until_s else []
        ends_s = max(ends_s, min(until_s, start_s + job.expected_s))
    return Plan(
        expected_s=expected_s(jobs, at_once),
        budget_s=budget_s,
        at_once=at_once,
        begun=tuple(begun),
        takes_s=ends_s + sum(KEPT_S.values()),
        left_out=tuple(left_out),
        proven=frozenset(part for part, devices in with_rows({}, passing, "cuda").items() if "cuda" in devices),
        recorded=bool(recorded),
    )
