"""What an account of memory costs: a watched step beside a plain one, in turns; and is its peak the allocator's?

    python benchmarks/memory_account.py [--turns 5] [--only NAME] [--json FILE]

Every model of ``memory_models.py``: one inference pass, and a training step with Adam. "run" is the step while it is
watched; "account" is everything from the start of watching to the finished record, over the plain step's time.
"""

from __future__ import annotations

import argparse
import datetime
import inspect
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

from togi.budget.account.make import account_of, close_account
from togi.budget.account.watch import Watch
from togi.budget.step import OptimizerName, Step, make_step
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.inputs import Subject

RUNS: tuple[tuple[bool, OptimizerName], ...] = ((False, "none"), (True, "adam"))


def models() -> list[str]:
    """The public factories of ``memory_models``, in their order."""
    found = inspect.getmembers(memory_models, inspect.isfunction)
    own = [(f.__code__.co_firstlineno, name) for name, f in found if f.__module__ == memory_models.__name__]
    return [name for _, name in sorted(own) if not name.startswith("_")]


def measure(name: str, train: bool, optimizer: OptimizerName, turns: int) -> dict[str, Any]:
    """One row; the difference is between the account's peak and the profiler's in a run of its own, in bytes."""
    torch.manual_seed(0)
    step = make_step(Subject(*getattr(memory_models, name)()), train=train, optimizer=optimizer)
    account = account_of(step)
    allocator = torch_allocator_peak_bytes(step.run)
    assert sum(holding.bytes for holding in account.holdings) == account.peak_bytes
    rounds = [(_plain(step), *_watched(step)) for _ in range(turns)]
    return {
        "model": name,
        "run": optimizer if train else "inference",
        "plain_ms": statistics.median(plain for plain, _, _ in rounds),
        "run_x": statistics.median(run / plain for plain, run, _ in rounds),
        "account_x": statistics.median(whole / plain for plain, _, whole in rounds),
        "difference_bytes": account.peak_bytes - account.baseline_bytes - (allocator or 0),
    }


def _plain(step: Step) -> float:
    started = time.perf_counter()
    step.run()
    return (time.perf_counter() - started) * 1e3


def _watched(step: Step) -> tuple[float, float]:
    started = time.perf_counter()
    watch = Watch(step.module)
    watch.enter_module(step.module)
    with watch:
        step.run()
    close_account(watch)
    return watch.ms, (time.perf_counter() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", choices=models())
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| model | run | plain, ms | run, times | account, times | difference, bytes |")
    print("|---|---|--:|--:|--:|--:|")
    rows = []
    for name in [given.only] if given.only else models():
        for train, optimizer in RUNS:
            row = measure(name, train, optimizer, given.turns)
            rows.append(row)
            print(
                f"| {name} | {row['run']} | {row['plain_ms']:.1f} | {row['run_x']:.2f} | {row['account_x']:.2f} "
                f"| {row['difference_bytes']} |",
                flush=True,
            )
    for key in ("run_x", "account_x"):
        values = sorted(row[key] for row in rows)
        print(f"\n{key}: median {statistics.median(values):.2f}, worst {values[-1]:.2f}")
    if given.json:
        document = {"date": datetime.date.today().isoformat(), "torch": torch.__version__, "rows": rows}
        given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
