"""Speed of `togi check`: 100,000 lines of transformers and timm through the command line.

    python benchmarks/check_speed.py [--cores 2] [--json benchmarks/data/check_speed.json] [--everything]

Files are drawn (seeded) from the installed packages until the sum of their lines is exact, and copied to a temporary
folder. *Cold*: no cache, a new process, findings printed into a pipe; Python's own byte code and the pages of the file
system are warm. *Unchanged*: the same again with the cache the cold run left. The curve shows whether cost is linear
in lines. ``--everything`` reads every file of the packages once and counts crashes.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from togi.lint.check_paths import check_paths
from togi.lint.source.model import concerns_torch
from togi.machine.describe import machine

PACKAGES = ("timm", "transformers")
LINES = 100_000
CURVE = (25_000, 50_000, 100_000, 200_000)
DEFECT = "a defect of togi"
"""Stands in the problem of a rule that raised (``check_file``)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--everything", action="store_true")
    options = parser.parse_args()
    _keep_to(options.cores)
    record = measure(options.runs, options.cores)
    if options.everything:
        record["everything"] = everything()
    print(report(record))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _keep_to(cores: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def measure(runs: int, cores: int) -> dict[str, Any]:
    here = machine()
    record: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "cpu": here.cpu_model,
        "cores": cores,
        "python": here.python,
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        record |= copy_lines(LINES, tree)
        cache = Path(folder) / "cache"
        record["cold_s"] = [cold_s(tree, cache) for _ in range(runs)]
        record["unchanged_s"] = [run_s(tree, cache) for _ in range(runs)]
        record["start_s"] = [_timed_s([_togi(), "--help"], cache) for _ in range(runs)]
        record["crashes"] = crashes(tree)
        record["curve"] = [curve_point(lines, Path(folder) / str(lines), cache) for lines in CURVE]
    return record


def curve_point(lines: int, tree: Path, cache: Path) -> dict[str, Any]:
    copy_lines(lines, tree)
    best = min(cold_s(tree, cache) for _ in range(3))
    return {"lines": lines, "cold_s": best, "crashes": crashes(tree)}


def copy_lines(lines: int, target: Path) -> dict[str, Any]:
    """Copy files with ``lines`` lines in all; says how many files and lines, and how many lines mention a framework.

    Raises ValueError when no sum of files is exact.
    """
    remaining, files, concerned = lines, 0, 0
    sources = [(root, path) for root in map(package_folder, PACKAGES) for path in sorted(root.rglob("*.py"))]
    random.Random(0).shuffle(sources)
    for root, path in sources:
        data = path.read_bytes()
        count = data.count(b"\n")
        if 0 < count <= remaining:
            copy = target / root.name / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
            remaining, files = remaining - count, files + 1
            concerned += count if concerns_torch(data) else 0
    if remaining:
        raise ValueError(f"{remaining} lines short of {lines}: the packages are too small, or another seed is needed")
    return {"lines": lines, "files": files, "lines_that_mention_a_framework": concerned}


def package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{name} is not installed: pip install {name}")
    return Path(spec.submodule_search_locations[0])


def cold_s(tree: Path, cache: Path) -> float:
    shutil.rmtree(cache, ignore_errors=True)
    return run_s(tree, cache)


def run_s(tree: Path, cache: Path) -> float:
    return _timed_s([_togi(), "check", str(tree)], cache)


def _togi() -> str:
    return str(Path(sys.executable).parent / "togi")


def _timed_s(command: Sequence[str], cache: Path) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, env={**os.environ, "TOGI_CACHE": str(cache)})
    elapsed = time.perf_counter() - began
    if done.returncode not in (0, 1) or b"Traceback" in done.stderr:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr.decode()[-3000:]}")
    return elapsed


def crashes(*trees: Path) -> list[str]:
    """Files that a rule stumbled over, or whose process died."""
    return [f"{p.path}: {p.message}" for p in check_paths(trees, cache=False).problems if _crash(p.message)]


def _crash(message: str) -> bool:
    return DEFECT in message or "died" in message


def everything() -> dict[str, Any]:
    """Every file of the packages, once, without a cache."""
    trees = [package_folder(name) for name in (*PACKAGES, "torchvision")]
    began = time.perf_counter()
    result = check_paths(trees, cache=False)
    return {
        "files": result.files,
        "lines": sum(path.read_bytes().count(b"\n") for tree in trees for path in tree.rglob("*.py")),
        "seconds": time.perf_counter() - began,
        "findings": len(result.findings),
        "problems": [f"{problem.path}: {problem.message}" for problem in result.problems],
        "crashes": sum(_crash(problem.message) for problem in result.problems),
    }


def report(record: dict[str, Any]) -> str:
    lines = [
        f"{record['lines']:,} lines in {record['files']} files ({record['lines_that_mention_a_framework']:,} lines in "
        f"files that mention a framework), {record['cpu']}, {record['cores']} cores, Python {record['python']}, "
        f"{record['date']}",
        "",
        "| run | best | median |",
        "|---|---|---|",
        *(f"| {name} | {_best_and_median(record[key])} |" for name, key in _RUNS.items()),
        "",
        "| lines | cold, best of 3 | µs a line |",
        "|---|---|---|",
        *_curve_rows(record["curve"]),
        "",
        f"crashes: {len(record['crashes'])} on {record['lines']:,} lines",
    ]
    if "everything" in record:
        all_of_it = record["everything"]
        lines.append(
            f"everything: {all_of_it['files']} files, {all_of_it['lines']:,} lines, {all_of_it['seconds']:.1f} s, "
            f"{all_of_it['findings']} findings, {all_of_it['crashes']} crashes, {len(all_of_it['problems'])} problems"
        )
    return "\n".join(lines)


_RUNS = {"cold": "cold_s", "unchanged": "unchanged_s", "`togi --help`": "start_s"}


def _best_and_median(times_s: Sequence[float]) -> str:
    return f"{min(times_s):.2f} s | {statistics.median(times_s):.2f} s"


def _curve_rows(curve: Iterable[dict[str, Any]]) -> Iterable[str]:
    return (f"| {p['lines']:,} | {p['cold_s']:.2f} s | {1e6 * p['cold_s'] / p['lines']:.1f} |" for p in curve)


if __name__ == "__main__":
    main()
