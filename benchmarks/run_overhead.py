"""What ``togi run`` costs a script: watching it, and later serving it, beside putting the artifacts in by hand.

    python -m benchmarks.run_overhead [--rounds 9] [--runs short guide ...] [--before SRC] [--json FILE]

Timed are whole processes, with starting Python and importing torch, in a random order a round; only ratios within a
round count. ``--before``: the ``src`` of another togi, which takes turns with this one.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import doors
from benchmarks.rows import measured_here, measured_on, put_rows

from togi.measure.interval import ratio_interval
from togi.script.records import read_index

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
WATCHED, SERVED = "watched", "served"
MOST = {WATCHED: 1.05, SERVED: 1.03}
"""The targets: over the plain script, and over the script with its artifacts put in by hand."""
TUNING_S, _MOST_S = 45, 120.0
MADE = "    encoder, head = Encoder(32).eval(), Head(32, 10).eval()\n"
"""The line of the guide's script after which artifacts can be put in."""
_LAYERS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear({width}, {width}), nn.ReLU(), nn.Linear({width}, 10)).eval()
x = torch.randn(8, {width})
with torch.no_grad():
    print(sum(model(x).sum().item() for _ in range({calls})))
"""
SCRIPTS = {
    "short.py": _LAYERS.format(width=256, calls=20),
    "tiny.py": _LAYERS.format(width=16, calls=100_000),
}


@dataclass(frozen=True)
class Run:
    """A script, with its arguments, under one of the two."""

    script: str
    arguments: tuple[str, ...]
    under: str
    about: str


RUNS = {
    "short": Run("short.py", (), WATCHED, "20 calls of three layers"),
    "guide": Run("classify.py", (), WATCHED, "the guide's script, 60 batches"),
    "long": Run("classify.py", ("--batches", "600"), WATCHED, "the guide's script, 600 batches"),
    "tiny": Run("tiny.py", (), WATCHED, "100,000 calls of three tiny layers"),
    "served": Run("classify.py", (), SERVED, "the guide's script, 60 batches"),
    "long_served": Run("classify.py", ("--batches", "600"), SERVED, "the guide's script, 600 batches"),
}


@dataclass
class Row:
    """One run of a script, in seconds of whole processes."""

    run: str
    under: str
    about: str
    without_s: float = 0.0
    """Median of the plain script, or of the script with the artifacts put in by hand."""
    more_s: float = 0.0
    """Median of what ``togi run`` took beyond that."""
    ratio: list[float] = field(default_factory=list)
    """Low, median, high."""
    before: list[float] = field(default_factory=list)
    """The same, of the other togi."""
    said: str = ""
    """Why it was not measured."""
    measured: str = field(default_factory=measured_here)


class Failed(Exception):
    """A process failed; the text says how."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", choices=[*RUNS], default=[*RUNS])
    parser.add_argument("--rounds", type=int, default=9, help="8 at least: fewer give no interval")
    parser.add_argument("--before", type=Path, help="the src of another togi")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="togi-run-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        for name, text in {**SCRIPTS, "classify.py": doors.script()}.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name in options.runs:
            rows.append(asdict(measured(name, folder, options.rounds, options.before)))
            print(rows[-1], flush=True)
            if options.json:
                put_rows(options.json, rows[-1:], by="run")
    print(table(rows))


def measured(name: str, folder: Path, rounds: int, before: Path | None) -> Row:
    """Race it, and say what failed."""
    run = RUNS[name]
    row = Row(name, run.under, run.about)
    try:
        times = raced(_ways(run, folder, before), folder, rounds)
    except Failed as error:
        row.said = str(error)
        return row
    without, with_togi = times["without"], times["togi"]
    row.without_s = statistics.median(without)
    row.more_s = statistics.median(b - a for a, b in zip(without, with_togi, strict=True))
    row.ratio = _ratio(with_togi, without)
    if "before" in times:
        row.before = _ratio(times["before"], without)
    return row


def _ratio(of: Sequence[float], over: Sequence[float]) -> list[float]:
    found = ratio_interval(of, over)
    return [found.low, found.median, found.high]


Way = tuple[list[str], Path]
"""The arguments of Python, and the ``src`` of togi."""


def _ways(run: Run, folder: Path, before: Path | None) -> dict[str, Way]:
    plain = [run.script, *run.arguments]
    if run.under == WATCHED:
        watched = ["-m", "togi", "run", "--report", *plain]
        others = {} if before is None else {"before": (watched, before.absolute())}
        return {"without": (plain, SOURCE), "togi": (watched, SOURCE), **others}
    tuned = folder / f"{run.script}.togi"
    if not tuned.exists():
        _timed(["-m", "togi", "run", "--time-limit", f"{TUNING_S}s", *plain], SOURCE, folder)
    if not tuned.exists():
        raise Failed("nothing was decided in time, so there is nothing to serve")
    by_hand = _by_hand(run.script, tuned, folder)
    served = ["-m", "togi", "run", "--with", tuned.name, *plain]
    others = {} if before is None else {"before": (served, before.absolute())}
    return {"without": ([by_hand, *run.arguments], SOURCE), "togi": (served, SOURCE), **others}


def _by_hand(script: str, tuned: Path, folder: Path) -> str:
    """The same script, with lines that put its artifacts in."""
    found = {one.identity.module: one.artifact for one in read_index(tuned).modules if one.artifact}
    if not found:
        raise Failed("nothing was faster, so there is nothing to serve")
    lines = [
        f"    togi.optimize({module.lower()}, using={f'{tuned.name}/{name}'!r})\n" for module, name in found.items()
    ]
    text = (folder / script).read_text(encoding="utf-8")
    assert text.count(MADE) == 1, "the guide's script has changed"
    written = text.replace(MADE, "".join([MADE, "    import togi\n", *lines]))
    (folder / "by_hand.py").write_text(written, encoding="utf-8")
    return "by_hand.py"


def raced(ways: Mapping[str, Way], folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds by way. Raises Failed."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    order = random.Random(0)
    for number in range(rounds + 1):
        for name in order.sample([*ways], len(ways)):
            seconds = _timed(*ways[name], folder)
            if number:  # the first reads files that are in memory from then on
                times[name].append(seconds)
    return times


def _timed(arguments: Sequence[str], source: Path, folder: Path) -> float:
    environment = {**os.environ, "TOGI_HOME": str(folder / "home"), "PYTHONPATH": str(source)}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            timeout=_MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(arguments)}: not over after {_MOST_S:.0f} s") from None
    seconds = time.perf_counter() - began
    if done.returncode:
        raise Failed(f"{' '.join(arguments)}: exit {done.returncode}: {''.join(done.stderr.splitlines()[-1:])}")
    return seconds


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, with the sums below."""
    compared = any(row["before"] for row in rows)
    lines = [
        f"| script | togi run | without (s) | more (s) | over that |{' before |' if compared else ''}",
        f"|---|---|--:|--:|---|{'---|' if compared else ''}",
    ]
    for row in rows:
        over = _text(row["ratio"]) if row["ratio"] else row["said"].replace("|", "/")
        last = f" {_text(row['before']) if row['before'] else '-'} |" if compared else ""
        seconds = f"{row['without_s']:.2f} | {row['more_s']:.2f}"
        lines.append(f"| {row['about']} | {row['under']} | {seconds} | {over} |{last}")
    for under, over in ((WATCHED, "the plain script"), (SERVED, "artifacts put in by hand")):
        known = [row["ratio"][1] for row in rows if row["under"] == under and row["ratio"]]
        kept = sum(ratio <= MOST[under] for ratio in known)
        lines += ["", f"{under}: at most {MOST[under] - 1:.0%} over {over} on {kept} of {len(known)}."] if known else []
    return "\n".join([*lines, "", measured_on(rows)])


def _text(ratio: Sequence[float]) -> str:
    low, median, high = ratio
    return f"{median:.3f} x ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
