"""Does togi work on this device? One command runs the parts that depend on it, and writes what it found.

    python -m benchmarks.gpu --out DIR                              on the CUDA device, what fits into 9 minutes
    python -m benchmarks.gpu --out DIR --budget 3600                everything
    python -m benchmarks.gpu --out DIR --device cpu                 the same programs where there is none
    python -m benchmarks.gpu --out DIR --parts tune --models resnet50,vit_b
    python -m benchmarks.gpu --out DIR --docs docs/gpu.md           also the tables of that page, and what is proven
    python -m benchmarks.gpu --rows FILE --docs docs/gpu.md         the same of rows that were brought from elsewhere

Each part (``benchmarks/gpu_parts``) is a process of its own with a time limit, so that a hang or a sticky CUDA error
ends that part alone. Every row is appended to ``DIR/rows.jsonl`` as soon as it is known, after those of earlier calls;
the table comes last, and ``DIR/table.md`` holds it. With ``--docs`` rows go to ``benchmarks/data/sweep_DEVICE.jsonl``,
in place of those of the same part: several calls with some parts each make one table. The exit code is 1 where a row
failed or nothing passed. What runs on the CPU proves nothing of CUDA: it shows that the day a device is there, it is
the device that is tested.

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

from benchmarks.gpu_rows import NO_DEVICE, Row, merged, read_rows, skipped, table, write_rows

from togi.core.proven import FOUND, with_rows
from togi.render.proven_table import between

LIMITS_S = {
    "environment": 30,
    "processes": 150,
    "engines": 300,
    "timer": 90,
    "memory": 60,
    "numerics": 60,
    "tests": 240,
    "tune": 1800,
    "budgets": 300,
    "ops": 90,
    "graphs": 90,
    "claims": 400,
}
"""Parts in their order, and how long each may take: an hour together."""
HERE = Path(__file__).parents[1]
DATA = HERE / "benchmarks" / "data"
COLUMNS = ("part", "row", "result", "figure", "seconds")
"""Shown as they come."""


def main() -> int:
    options = parsed()
    if options.rows is not None:
        publish(read_rows(options.rows), options.docs)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "rows.jsonl"
    known = read_rows(path)
    rows = []
    with path.open("a", encoding="utf-8") as file:
        for row in sweep(options.parts, options.device, options.budget, options.out, options.models):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(" | ".join(str(row[column]) for column in COLUMNS), file=sys.stderr, flush=True)
    text = table(merged(known, rows, tuple(LIMITS_S)), options.device)
    (options.out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    if options.docs is not None:
        publish(rows, options.docs)
    results = [row["result"] for row in rows]
    return 1 if "fail" in results or "pass" not in results else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("sweep"), help="where the rows and the logs go")
    parser.add_argument("--parts", default=",".join(LIMITS_S), help="of " + ", ".join(LIMITS_S))
    parser.add_argument("--models", help="names of benchmarks/gpu_models.py for the part tune; none: all")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything; what is left is skipped")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--docs", type=Path, help="a page with the marks of this table; what is proven is recorded too")
    parser.add_argument("--rows", type=Path, help="run nothing: a rows.jsonl of another call or machine, for --docs")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if unknown := [part for part in options.parts if part not in LIMITS_S]:
        parser.error(f"there is no part {unknown[0]!r}: of {', '.join(LIMITS_S)}")
    if options.rows is not None and (options.docs is None or not options.rows.is_file()):
        parser.error("--rows needs a file that is there, and --docs PAGE")
    return options


def publish(rows: Sequence[Row], page: Path, data: Path = DATA, found: Path = FOUND) -> None:
    """The rows in place of those known of the same parts: in the data, in the page's table of that device, and in what
    is proven."""
    for device in dict.fromkeys(row["device"] for row in rows):
        of_device = [row for row in rows if row["device"] == device]
        if any(row["row"] == NO_DEVICE for row in of_device):
            print(f"{page} is left as it is: there was no CUDA device to prove anything on", file=sys.stderr)
            continue
        path = data / f"sweep_{device}.jsonl"
        known = merged(read_rows(path), of_device, tuple(LIMITS_S))
        write_rows(path, known)
        record(known, device, found)
        text = with_table(page.read_text(encoding="utf-8"), table(known, device), device)
        page.write_text(text, encoding="utf-8")
    # the table of what is proven: by a process that reads what was recorded
    subprocess.run([sys.executable, "-m", "togi.render.proven_table", str(page)], check=True)


def record(rows: Sequence[Row], device: str, path: Path = FOUND) -> None:
    """What the rows prove, for ``togi.core.proven``."""
    found = with_rows(json.loads(path.read_text(encoding="utf-8")), rows, device)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def sweep(parts: Sequence[str], device: str, budget_s: float, out: Path, models: str | None = None) -> Iterator[Row]:
    """The rows of all parts, as they come, with the day and the machine; a part that the budget leaves no time for, or
    not enough, is skipped and says so."""
    ends = time.monotonic() + budget_s
    over = f"the budget of {budget_s:g} s was over"
    known = {"device": device, "machine": f"{device} of {platform.machine()}"}
    for part in parts:
        left_s = ends - time.monotonic()
        command = [sys.executable, "-m", "benchmarks.gpu_parts", part, "--device", device]
        command += ["--models", models] if models and part == "tune" else []
        cut = over if left_s < LIMITS_S[part] else None
        found = [skipped(part, over)] if left_s < 5 else None
        limit_s = min(LIMITS_S[part], left_s)
        for row in found or run_part(part, command, limit_s, out / f"{part}.log", cut):
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            known["machine"] = row.get("machine", known["machine"])
            yield {**row, **known, "date": today}


def run_part(part: str, command: Sequence[str], limit_s: float, log: Path, cut: str | None = None) -> Iterator[Row]:
    """One process, which prints a row a line; what it prints else, and its errors, are in ``log``. All of its own
    processes end with it. Ended at the limit it has failed; with ``cut``, which says why, it was not given its time."""
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
    seconds = time.monotonic() - began
    if status != 0:
        yield _ended(part, status, seconds, limit_s, log, cut)


def _ended(part: str, status: int, seconds: float, limit_s: float, log: Path, cut: str | None) -> Row:
    at_limit = status == -signal.SIGKILL and seconds >= limit_s
    if at_limit and cut is not None:
        return skipped(part, f"{cut} after {seconds:.0f} s of it: rows may be missing", seconds)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    why = f"ended at its limit of {limit_s:.0f} s" if at_limit else f"exit status {status}: {''.join(last)}"
    return {**skipped(part, why, seconds), "result": "fail"}


def with_table(page: str, text: str, device: str) -> str:
    """``page`` with ``text`` between the marks of ``device``. Raises ValueError where a mark is missing."""
    begin = f"<!-- sweep {device}: generated by python -m benchmarks.gpu -->"
    return between(page, begin, f"<!-- sweep {device}: end -->", text.rstrip("\n"))


if __name__ == "__main__":
    sys.exit(main())
