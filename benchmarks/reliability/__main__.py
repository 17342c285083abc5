"""What survives: processes that are killed at random, files that are changed, a full disk, a clock that jumps, little
memory, two runs at once, a stop, and a day of studies.

    python -m benchmarks.reliability [--only STEP ...] [--kills 200] [--mutants 2000] [--seed 0] ...

Every experiment is a real ``togi tune`` of a small model in a home, a journal and a temporary folder of its own.
Counted is what must not happen: a finished trial that is not in the journal, a process or a file that is left behind,
damage that is loaded as if it were whole, code of an artifact that is executed, an end that is called a defect, a
process that is killed for memory without a word, a measure that grows.

A kill, a run on a full disk and a study take about 10 s each, a changed artifact a tenth of a second. Without options
it is the long form; ``--only`` and ``--seed`` give it in pieces. ``tests/test_reliability.py`` runs a short one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reliability.files import journals, mutants
from benchmarks.reliability.growth import STUDIES, TRIALS, growth
from benchmarks.reliability.processes import kills, stopped, two_at_once
from benchmarks.reliability.surroundings import full_disk, jumping_clock, little_memory

GROWS = {"RSS": 1024, "driver's RSS": 1024, "journal": float("inf"), "descriptors": 1}
"""What a measure may grow by from one half of the time to the other (memory in KiB). The journal is only ever added to,
and a descriptor may stay open until its owner is collected."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="some of the steps (default: all)")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--journals", type=int, default=2000)
    parser.add_argument("--disks", type=int, default=40)
    parser.add_argument("--weights", type=int, nargs="+", default=[16, 96, 256, 768, 1536], help="MiB, beside 1 GiB")
    parser.add_argument("--stop", type=float, default=60.0, help="seconds")
    parser.add_argument("--studies", type=int, default=288)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reliability-") as name:
        folder = Path(name)
        steps: dict[str, Callable[[], dict[str, Any]]] = {
            "stop": lambda: stopped(folder, given.stop),
            "mutants": lambda: mutants(given.mutants, given.seed, folder),
            "journals": lambda: journals(given.journals, given.seed, folder),
            "disk": lambda: full_disk(given.disks, given.seed, folder),
            "two": lambda: two_at_once(folder),
            "clock": lambda: jumping_clock(folder),
            "memory": lambda: little_memory(folder, 1024, given.weights),
            "trials": lambda: growth(TRIALS, given.trials, folder / "trials", GROWS),
            "studies": lambda: growth(STUDIES, given.studies, folder / "studies", GROWS),
            "kills": lambda: kills(given.kills, given.seed, folder),
        }
        if unknown := set(given.only) - set(steps):
            parser.error(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(steps)}")
        wrong = False
        for step in given.only or steps:
            started = time.monotonic()
            result = steps[step]()
            print(f"{step} ({time.monotonic() - started:.0f} s): {result}", flush=True)
            wrong |= any(result.get(bad) for bad in ("bad", "lost", "left", "odd ends"))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
