"""Does togi work on this device? One command runs the parts that depend on it, and writes what it found.

    python -m benchmarks.gpu --out DIR                              on the CUDA device, within 9 minutes
    python -m benchmarks.gpu --out DIR --device cpu                 the same programs where there is none
    python -m benchmarks.gpu --out DIR --parts timer,numerics --budget 120
    python -m benchmarks.gpu --out DIR --docs docs/gpu.md           also the tables of that page, and what is proven

Each part (``benchmarks/gpu_parts``) is a process of its own with a time limit, so that a hang or a sticky CUDA error
ends that part alone. Every row is appended to ``DIR/rows.jsonl`` as soon as it is known; the table comes last, and
``DIR/table.md`` holds it. The exit code is 1 where a row failed or nothing passed. What runs on the CPU proves nothing
of CUDA: it shows that the day a device is there, it is the device that is tested.

On a machine that lacks togi's small dependencies: ``python -m benchmarks.gpu_wheels DIR`` packs them on another.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from togi.core.proven import FOUND, with_rows

Row = dict[str, Any]
"""``part``, ``row``, ``result`` (pass, fail, skip), ``figure``, ``bound``, ``seconds``."""

LIMITS_S = {
    "environment": 30,
    "processes": 150,
    "engines": 300,
    "timer": 90,
    "memory": 60,
    "numerics": 60,
    "tests": 120,
    "tune": 520,
    "budgets": 300,
    "ops": 90,
    "graphs": 90,
    "claims": 400,
}
"""Parts in their order, and how long each may take."""
HERE = Path(__file__).parents[1]
COLUMNS = ("part", "row", "result", "figure", "bound", "seconds")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(LIMITS_S), help="of " + ", ".join(LIMITS_S))
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--docs", type=Path, help="a page with the marks of this table; what is proven is recorded too")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in LIMITS_S]:
        parser.error(f"there is no part {unknown[0]!r}: of {', '.join(LIMITS_S)}")
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with (options.out / "rows.jsonl").open("w", encoding="utf-8") as file:
        for row in sweep(parts, options.device, options.budget, options.out):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(" | ".join(str(row[column]) for column in COLUMNS), file=sys.stderr, flush=True)
    name = device_name(rows, options.device)
    text = table(rows, name)
    (options.out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    if options.docs is not None:
        record(rows, options.device, name)
        page = options.docs.read_text(encoding="utf-8")
        # the table of what is proven: by a process that reads what was recorded
        options.docs.write_text(with_table(page, text, options.device), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "togi.render.proven_table", str(options.docs)], check=True)
    results = [row["result"] for row in rows]
    return 1 if "fail" in results or "pass" not in results else 0


def record(rows: Sequence[Row], device: str, name: str, path: Path = FOUND) -> None:
    """What the rows prove, for ``togi.core.proven``."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    known = json.loads(path.read_text(encoding="utf-8"))
    found = with_rows(known, rows, device, name, today)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def sweep(parts: Sequence[str], device: str, budget_s: float, out: Path) -> Iterator[Row]:
    """The rows of all parts, as they come; a part that the budget leaves no time for is skipped and says so."""
    ends = time.monotonic() + budget_s
    for part in parts:
        left_s = ends - time.monotonic()
        if left_s < 5:
            yield skipped(part, f"the budget of {budget_s:g} s was over")
            continue
        command = [sys.executable, "-m", "benchmarks.gpu_parts", part, "--device", device]
        yield from run_part(part, command, min(LIMITS_S[part], left_s), out / f"{part}.log")


def run_part(part: str, command: Sequence[str], limit_s: float, log: Path) -> Iterator[Row]:
    """One process, which prints a row a line; what it prints else, and its errors, are in ``log``. All of its own
    processes end with it."""
    began = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            cwd=HERE,
            process_group=0,
        )
        late = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield {"part": part, **json.loads(line)}
        status = process.wait()
        late.cancel()
    seconds = round(time.monotonic() - began, 1)
    if status != 0:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        why = (
            f"ended at its limit of {limit_s:.0f} s" if seconds >= limit_s else f"exit status {status}: {''.join(last)}"
        )
        yield {"part": part, "row": "the process", "result": "fail", "figure": why, "bound": "", "seconds": seconds}


def skipped(part: str, why: str) -> Row:
    return {"part": part, "row": "", "result": "skip", "figure": why, "bound": "", "seconds": 0.0}


def device_name(rows: Sequence[Row], device: str) -> str:
    """As the part ``environment`` found it."""
    found = (row["figure"] for row in rows if (row["part"], row["row"]) == ("environment", "device"))
    return next(found, f"{device} of {platform.machine()}")


def table(rows: Sequence[Row], device: str) -> str:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [f"{today}, {device}:", "", f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        lines.append("| " + " | ".join(str(row[column]).replace("|", "\\|") for column in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def with_table(page: str, text: str, device: str) -> str:
    """``page`` with ``text`` between the marks of ``device``. Raises ValueError where a mark is missing."""
    begin, end = f"<!-- sweep {device}: generated by python -m benchmarks.gpu -->", f"<!-- sweep {device}: end -->"
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"the lines {begin} and {end} are not both in the page")
    return f"{before}{begin}\n{text}{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
