"""What ``python -m benchmarks.gpu`` runs, in which order, and what may run at the same time.

A job is a process: some rows of a part. What only asks whether togi is right may run beside others on the one device;
what measures time, or the memory of the whole device, runs alone. The order is that of proof per second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import final

from benchmarks.gpu_rows import Row, done


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """Rows of one part, in a process of their own."""

    part: str
    rows: str = ""
    """A regular expression that a row's name must match from its start; empty: every row of the part."""
    expected_s: float
    """On one H100 with 16 cores and cold caches: an estimate until the table of docs/gpu.md has the seconds."""
    limit_s: float
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
_TIMED_TESTS = r"tests of (peak memory|timing)"


def _beside(part: str, rows: str = "", *, expected_s: float, limit_s: float) -> Job:
    return Job(part=part, rows=rows, expected_s=expected_s, limit_s=limit_s, beside=True)


JOBS = (
    _beside("environment", expected_s=15, limit_s=60),
    # the longest first, so that none of them is left alone at the end
    _beside("engines", r"torch_compile \(mode=(?!default).* on convolutions", expected_s=110, limit_s=170),
    _beside("engines", r"torch_compile .* on (?!convolutions)", expected_s=60, limit_s=170),
    _beside("techniques", "(?!expandable_segments|parts)", expected_s=45, limit_s=150),
    _beside("techniques", "expandable_segments", expected_s=25, limit_s=90),
    _beside("tests", f"(?!{_TIMED_TESTS})", expected_s=60, limit_s=150),
    _beside("budgets", "prediction", expected_s=45, limit_s=150),
    _beside("budgets", "togi fit", expected_s=40, limit_s=150),
    _beside("engines", _QUICK, expected_s=35, limit_s=150),
    _beside("engines", f"{_PLAIN_MODE}.* on convolutions", expected_s=35, limit_s=150),
    _beside("footprint", expected_s=20, limit_s=90),
    _beside("ops", "(?!.*time)", expected_s=25, limit_s=90),
    _beside("check", "(?!.*(sheet|measured))", expected_s=20, limit_s=60),
    _beside("numerics", expected_s=20, limit_s=60),
    _beside("graphs", "(?!against an exact)", expected_s=40, limit_s=90),
    _beside("processes", "(?!pause)", expected_s=50, limit_s=150),
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
    _beside("techniques", "parts", expected_s=60, limit_s=150),
    Job(part="tune", expected_s=900, limit_s=2400, by_row=True),
    Job(part="claims", rows=f"(?!{_FIRST_CLAIMS})", expected_s=280, limit_s=900, by_row=True),
    Job(part="budgets", rows="tune", expected_s=80, limit_s=200),
    Job(part="afterwards", expected_s=5, limit_s=30),
)
PARTS = tuple(dict.fromkeys(job.part for job in JOBS))
KEPT_S = {"afterwards": 8.0}
"""Of the budget, for what comes last and must not be left out."""
LEAST_S = 20.0
"""What a job that counts by the row is given at the least."""
START_S = 10.0
"""What a process takes that finds all of its rows known: it imports torch."""


def left_of(job: Job, before: Sequence[Row]) -> Job:
    """The job with what is expected of it where rows of ``before`` need not be run again."""
    known = set(done(before, job.part))
    took_s = {row["row"]: row["seconds"] for row in before if row["part"] == job.part and row["row"] in known}
    spared_s = sum(seconds for name, seconds in took_s.items() if re.match(job.rows, name))
    return replace(job, expected_s=max(min(START_S, job.expected_s), job.expected_s - spared_s))


def enough(job: Job, left_s: float) -> bool:
    """Whether it is begun with so much time left."""
    return left_s >= (min(LEAST_S, job.expected_s) if job.by_row else job.expected_s)


def expected_s(jobs: Iterable[Job], at_once: int) -> float:
    """Of all: those beside each other share the time, the others take turns."""
    return sum(_group_s(list(group), at_once) for _, group in groupby(jobs, key=lambda job: job.beside))


def _group_s(jobs: Sequence[Job], at_once: int) -> float:
    """Of neighbours in the list that all run beside each other, or all alone."""
    each = [job.expected_s for job in jobs]
    return max(sum(each) / max(1, at_once), *each) if jobs[0].beside else sum(each)


def plan(jobs: Sequence[Job], budget_s: float, at_once: int) -> str:
    """What is expected of it, in a sentence."""
    left = budget_s - sum(KEPT_S.values())
    out: list[str] = []
    asked = [job for job in jobs if job.part not in KEPT_S]
    for beside, group in groupby(asked, key=lambda job: job.beside):
        for together in [list(group)] if beside else [[job] for job in group]:
            begun = [job for job in together if enough(job, left)]
            out += [job.name for job in together if job not in begun]
            left -= min(_group_s(begun, at_once), left) if begun else 0.0
    total = expected_s(jobs, at_once)
    told = f"Expected are {total:.0f} s ({at_once} jobs at once where they may), there are {budget_s:.0f} s."
    return f"{told} What will not fit: {', '.join(out)}." if out else told
