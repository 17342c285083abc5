"""How often does a comparison tell the truth? The same model against itself, and against a copy with 10 % more to do.

    python benchmarks/noise.py --runs 40 --budget 15            the table of benchmarks/README.md
    python benchmarks/noise.py --bias --runs 20 --budget 10     how far two processes of one model differ for good

Each run builds two fresh child processes and races them with ``togi.measure.compare``, on the machine as it is and
beside one and two processes that keep a core busy each. The slower copy has 22 blocks where the model has 20, all of
one size, so that it does 10 % more arithmetic in the same way; that it takes as much longer is to be seen in the column
``ratio`` (median over the runs of its time over the model's) on the quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from togi.decide.faster import PROCESS_BIAS, Criterion
from togi.measure import RaceResult, RaceVerdict, Turn, keep_freed_memory, race, take_turn, warm
from togi.subject.inputs import Inputs

BLOCKS, MORE_BLOCKS = 20, 22
BUSY = {"quiet": 0, "one busy core": 1, "two busy cores": 2}


def model(blocks: int, threads: int) -> tuple[Callable[..., Any], list[Inputs]]:
    """``blocks`` equal convolutions on a (1, 32, 56, 56) float32 image, in one thread or more."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    layers = [torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU()) for _ in range(blocks)]
    module = torch.nn.Sequential(*layers).eval().requires_grad_(False)
    return module, [Inputs((torch.rand(1, 32, 56, 56),))]


class ChildRunner:
    """A runner in a forked child, which is stopped whenever it is not its turn."""

    def __init__(self, name: str, blocks: int, threads: int) -> None:
        self.name = name
        answers, self._answer = os.pipe()
        self._asked, questions = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._serve(blocks, threads)
        for fd in (self._answer, self._asked):
            os.close(fd)
        self._answers: IO[str] = os.fdopen(answers, encoding="utf-8")
        self._questions = questions
        self._read()
        os.kill(self._pid, signal.SIGSTOP)

    def turn(self, passes: int) -> Turn:
        os.kill(self._pid, signal.SIGCONT)
        os.write(self._questions, f"{passes}\n".encode())
        answer = self._read()
        os.kill(self._pid, signal.SIGSTOP)
        return Turn.from_json(answer)

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._answers.close()
        os.close(self._questions)

    def _read(self) -> str:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the child of {self.name} ended")
        return line

    def _serve(self, blocks: int, threads: int) -> None:
        """In the child; never returns."""
        try:
            keep_freed_memory()
            call, samples = model(blocks, threads)
            warm(call, samples)
            os.write(self._answer, b"ready\n")
            for line in os.fdopen(self._asked, encoding="utf-8"):
                os.write(self._answer, f"{take_turn(call, samples, int(line)).to_json()}\n".encode())
        finally:
            os._exit(1)


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """``count`` processes that do nothing but compute."""
    parent, pids = os.getpid(), []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            while os.getppid() == parent:
                sum(range(100_000))
            os._exit(0)
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def one_run(blocks: int, seed: int, options: argparse.Namespace) -> RaceResult:
    """The model against ``blocks`` blocks; a random one of the two is built first."""
    sizes = {"model": BLOCKS, "other": blocks}
    runners: dict[str, ChildRunner] = {}
    try:
        for name in random.Random(seed).sample(sorted(sizes), 2):
            runners[name] = ChildRunner(name, sizes[name], options.threads)
        exact = Criterion(margin=0.0, process_bias=0.0)
        unending = {"criterion": exact, "min_rounds": sys.maxsize} if options.bias else {}
        return race([runners["other"]], runners["model"], budget_s=options.budget, seed=seed, **unending)
    finally:
        for runner in runners.values():
            runner.close()


def answer(result: RaceResult) -> str:
    if result.verdict is not RaceVerdict.SEPARATED:
        return result.verdict.value
    return "other slower" if result.entry("other").left_at is not None else "other faster"


def scenario(name: str, blocks: int, options: argparse.Namespace) -> dict[str, Any]:
    """One line of the table."""
    results = []
    with busy_cores(BUSY[name]):
        for run in range(options.runs):
            results.append(one_run(blocks, options.seed + run, options))
            print(f"{name}, {blocks} blocks, run {run}: {results[-1].sentence}", file=sys.stderr)
    ratios = sorted(1.0 / result.entry("other").speedup_x.median for result in results)  # type: ignore[union-attr]
    return {
        "machine": name,
        "other": "same" if blocks == BLOCKS else f"{blocks / BLOCKS - 1:.0%} more work",
        "runs": len(results),
        **dict.fromkeys(("other slower", "other faster", "equivalent", "cannot_tell"), 0),
        **Counter(answer(result) for result in results),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[0],
        "ratio_high": ratios[-1],
        "rounds": statistics.median(result.rounds for result in results),
        "seconds": statistics.median(result.wall_s for result in results),
        "spread": statistics.median(result.entry("model").noise.spread for result in results),
        "waiting": statistics.median(result.entry("model").noise.waiting for result in results),
        "neighbours": statistics.median(result.entry("model").noise.neighbours for result in results),
    }


def show(rows: list[dict[str, Any]]) -> None:
    columns = list(rows[0])
    cells = [columns, *([f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def targets(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The targets, each with what was found."""
    for row in rows:
        runs, wrong, right = row["runs"], row["other faster"], row["other slower"]
        if row["other"] == "same":
            different = wrong + right
            yield f"{row['machine']}: called different {different} of {runs} (at most {int(0.05 * runs)}): " + (
                "reached" if different <= 0.05 * runs else "MISSED"
            )
            continue
        least = 0.9 * runs if row["machine"] != "two busy cores" else 0
        yield (
            f"{row['machine']}: 10 % slower found {right} of {runs} (at least {least:g}), wrong way round {wrong}: "
            + ("reached" if right >= least and not wrong else "MISSED")
        )


def bias(options: argparse.Namespace) -> None:
    """The lasting difference between two processes of one model, on the machine as it is.

    Only pairs whose interval is narrower than 2 % say anything of it: in the others the machine's noise covers it.
    """
    found = []
    for run in range(options.runs):
        speedup = one_run(BLOCKS, options.seed + run, options).entry("other").speedup_x
        if speedup is not None and speedup.high - speedup.low < 0.02:
            found.append(max(speedup.median, 1.0 / speedup.median) - 1.0)
        print(f"run {run}: {speedup}", file=sys.stderr)
    print(f"{len(found)} of {options.runs} pairs are conclusive (interval narrower than 2 %)")
    for share in (0.5, 0.9, 1.0) if found else ():
        print(f"{share:.0%} of those differ by at most {sorted(found)[math.ceil(share * len(found)) - 1]:.2%}")
    print(f"allowed between two processes: {PROCESS_BIAS:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="runs per line of the table")
    parser.add_argument("--budget", type=float, default=15.0, help="seconds per comparison")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", choices=[*BUSY, "all"], default="all", help="only this scenario")
    parser.add_argument("--bias", action="store_true", help="only measure how far two processes differ")
    parser.add_argument("--json", help="also write the table to this file")
    options = parser.parse_args()
    import torch  # noqa: F401  (once, before the forks; the parent runs no operator and so starts no thread)

    if options.bias:
        return bias(options)
    began, names = time.monotonic(), list(BUSY) if options.machine == "all" else [options.machine]
    rows = [scenario(name, blocks, options) for name in names for blocks in (BLOCKS, MORE_BLOCKS)]
    show(rows)
    print("\n".join(targets(rows)))
    print(f"{time.monotonic() - began:.0f} s")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
