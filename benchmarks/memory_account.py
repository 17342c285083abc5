"""What an account of memory costs: a watched step beside a plain one, in turns; and is its peak the allocator's?

    python benchmarks/memory_account.py [--turns 5] [--models NAME,NAME] [--json FILE]
    python benchmarks/memory_account.py --table FILE

All models with 5 turns take about a quarter of an hour on two quiet cores. ``--table`` only prints what a file holds.

Every model of ``memory_models.py``: one inference pass, and a training step with Adam. "run" is the step while it is
watched; "account" is everything from the start of watching to the finished record, over the plain step's time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch

sys.path.insert(0, str(Path(__file__).parent))
import memory_models

from togi.footprint.account.make import account_from
from togi.footprint.account.watch import AccountWatch
from togi.footprint.account.watched import account_of
from togi.footprint.step import Step, make_step
from togi.machine.describe import machine
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.inputs import Subject

TARGET_X = 2
RUNS: tuple[tuple[bool, str], ...] = ((False, "none"), (True, "adam"))


def models() -> list[str]:
    return [factory.__name__ for factory in memory_models.ALL]


def measure(name: str, train: bool, optimizer: str, turns: int) -> dict[str, Any]:
    """One row; the difference is between the account's peak and the profiler's in a run of its own, in bytes."""
    torch.manual_seed(0)
    step = make_step(Subject(*getattr(memory_models, name)()), train=train, optimizer=optimizer)
    account = account_of(step)
    allocator = torch_allocator_peak_bytes(step.run)
    rounds = [(_plain(step), *_watched(step)) for _ in range(turns)]
    return {
        "model": name,
        "run": optimizer if train else "inference",
        "plain_ms": statistics.median(plain for plain, _, _ in rounds),
        "run_x": statistics.median(run / plain for plain, run, _ in rounds),
        "account_x": statistics.median(whole / plain for plain, _, whole in rounds),
        "peak_bytes": account.peak_bytes,
        "sum_of_owners_bytes": sum(holding.bytes for holding in account.holdings),
        "difference_bytes": account.peak_bytes - account.baseline_bytes - (allocator or 0),
    }


def _plain(step: Step) -> float:
    started = time.perf_counter()
    step.run()
    return (time.perf_counter() - started) * 1e3


def _watched(step: Step) -> tuple[float, float]:
    started = time.perf_counter()
    watch = AccountWatch(step.module)
    watch.add_module(step.module)
    with watch:
        step.run()
    account_from(watch)
    return watch.ms, (time.perf_counter() - started) * 1e3


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row for each run, then what the targets are about."""
    lines = [
        "| model | run | plain, ms | the watched step, times | everything to the record, times | difference, bytes |",
        "|---|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['model']} | {row['run']} | {row['plain_ms']:.1f} | {row['run_x']:.2f} | {row['account_x']:.2f} "
        f"| {row['difference_bytes']:,} |"
        for row in rows
    ]
    return "\n".join([*lines, "", *summary(rows)])


def summary(rows: list[dict[str, Any]]) -> list[str]:
    exact = sum(row["difference_bytes"] == 0 for row in rows)
    summed = sum(row["sum_of_owners_bytes"] == row["peak_bytes"] for row in rows)
    lines = [f"Of {len(rows)} runs the peak is the profiler's in {exact}, and the owners sum to the peak in {summed}."]
    for key, what in (("run_x", "The watched step"), ("account_x", "Everything to the record")):
        values = sorted(row[key] for row in rows)
        within = sum(value <= TARGET_X for value in values)
        lines.append(
            f"{what}: median {statistics.median(values):.2f} x, worst {values[-1]:.2f} x, "
            f"{within} of {len(values)} within {TARGET_X} x."
        )
    return lines


def chosen_models(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := sorted(set(names) - set(models())):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(models())}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--models", type=chosen_models, default=models(), metavar="NAME,NAME")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--table", type=Path, help="print the table of such a file, and measure nothing")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text(encoding="utf-8"))["rows"]))
        return
    warnings.simplefilter("ignore")
    rows = []
    for name in given.models:
        for train, optimizer in RUNS:
            rows.append(measure(name, train, optimizer, given.turns))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(table(rows))
    if given.json:
        given.json.write_text(json.dumps(_document(rows, given.turns), indent=1) + "\n", encoding="utf-8")


def _document(rows: list[dict[str, Any]], turns: int) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": machine().model_dump(mode="json"),
        "turns": turns,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
