"""Thirty models that nobody here wrote, drawn by a fixed seed, each tuned in a process of its own.

    python -m benchmarks.drawn [--seed 0] [--time-limit 60] [--models timm:resnet18 ...] [--json FILE]

The models are those of ``drawn_models.py``. For each: whether a gain of 1.3 x and more over plain eager was proven,
when the first gain was proven, how long the whole study took, and what was said where nothing was gained. An error of
any kind that is not a refusal of togi's own is shown as one.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import drawn_models
from benchmarks.programs import Watch
from benchmarks.rows import measured_here, measured_on, put_rows

from togi import api
from togi.core.errors import TogiError

WANTED = 1.3
ROOT = Path(__file__).parents[1]


@dataclass
class Row:
    """One model. ``speedup_x`` is the median over plain eager under ``no_grad``, 1 where that was kept."""

    model: str
    speedup_x: float = 1.0
    recipe: str = ""
    first_gain_s: float | None = None
    """Since loading began."""
    tuned_s: float = 0.0
    said: str = ""
    refused: str = ""
    """togi's own error."""
    error: str = ""
    """Any other."""
    measured: str = field(default_factory=measured_here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each")
    parser.add_argument("--models", nargs="*", help="these, whatever the seed draws")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(tuned(options.one, options.time_limit))))
        return
    rows = []
    for name in options.models or drawn_models.drawn(options.seed):
        rows.append(_in_a_process(name, options.time_limit))
        print(line(rows[-1]), flush=True)
        if options.json:
            put_rows(options.json, [asdict(rows[-1])], by="model")
    print(table([asdict(row) for row in rows]))


def _in_a_process(name: str, time_limit_s: float) -> Row:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.drawn",
        "--one",
        name,
        "--time-limit",
        str(time_limit_s),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        return Row(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return Row(name, error=next(iter(done.stderr.splitlines()[-1:]), f"exit code {done.returncode}"))


def tuned(name: str, time_limit_s: float) -> Row:
    """Make it and tune it."""
    row = Row(name)
    subject, inputs = drawn_models.make(name)
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = api.tune(
                subject,
                inputs,
                time_limit_s=time_limit_s,
                journal=Path(folder) / "journal.sqlite",
                out=Path(folder) / "tuned.togi",
                progress=watch,
            )
        except TogiError as error:
            row.refused = str(error)
            return row
        finally:
            row.tuned_s = time.monotonic() - watch.began
    study = result.record
    row.said = study.verdict
    if study.best is not None and not study.best.is_reference:
        row.recipe = study.best.label
        row.first_gain_s = watch.first_gain_s(study)
        timing = result.best.trial.timing
        row.speedup_x = timing.speedup_x.median if timing is not None else 1.0
    return row


def line(row: Row) -> str:
    if row.error or row.refused:
        return f"{row.model}: {'ERROR' if row.error else 'refused'}: {row.error or row.refused}"
    first = "-" if row.first_gain_s is None else f"{row.first_gain_s:.0f}"
    said = row.said if row.speedup_x < WANTED else ""
    return f"{row.model}: {row.speedup_x:.2f} x, first gain {first} s, whole {row.tuned_s:.0f} s, {row.recipe} {said}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, with the sums below."""
    lines = ["| model | over eager | first gain, whole (s) | recipe |", "|---|--:|--:|---|"]
    for row in rows:
        first = "-" if row["first_gain_s"] is None else f"{row['first_gain_s']:.0f}"
        said = f"`{row['recipe']}`" if row["recipe"] else "kept as it was"
        said = _first_line("error: ", row["error"]) or _first_line("refused: ", row["refused"]) or said
        lines.append(f"| {row['model']} | {row['speedup_x']:.2f} x | {first}, {row['tuned_s']:.0f} | {said} |")
    gained = [row for row in rows if row["speedup_x"] >= WANTED]
    firsts = [row["first_gain_s"] for row in rows if row["first_gain_s"] is not None]
    lines += [
        "",
        f"{len(gained)} of {len(rows)} gained {WANTED} x and more; geometric mean "
        f"{statistics.geometric_mean(row['speedup_x'] for row in rows):.2f} x; "
        f"{sum(bool(row['error']) for row in rows)} errors, {sum(bool(row['refused']) for row in rows)} refusals.",
        f"First gain after {statistics.median(firsts) if firsts else math.nan:.0f} s, loading included (median of the "
        f"{len(firsts)} that were sure of one in a trial; others were in the race or the proof).",
        measured_on(rows),
    ]
    return "\n".join(lines)


def _first_line(what: str, text: str) -> str:
    return f"{what}{text.splitlines()[0]}" if text else ""


if __name__ == "__main__":
    main()
