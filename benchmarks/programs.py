"""Whole programs, tuned, beside what a user would do instead, all taking turns in one run.

    python -m benchmarks.programs [--programs llama_generate ...] [--time-limit 300] [--budget 60] [--json FILE]

Every program of ``program_subjects.py`` is tuned with ``togi tune``; then plain eager, torch.compile with dynamic
sizes, regional compilation, the tuned program and, where there is one, the library's own fast path run in turns, under
``inference_mode``, each in a process of its own. A peer whose result differs from plain eager's is shown and does not
count. Programs whose packages are not installed are left out, with the reason.

optimum-intel needs an older transformers than the subjects use: install it into a folder of its own and name that
(``pip install --target FOLDER --no-deps optimum optimum-intel 'transformers<5.6' 'huggingface-hub<1.22' ...``,
``--optimum FOLDER``). Without it, the programs that ``generate`` have no peer of that kind.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from benchmarks import program_peers as contestants
from benchmarks.peers import EVERYBODY
from benchmarks.program_peers import EAGER, OPTIMUM, OWN, OWN_PATHS, PEERS, SUBJECTS, TOGI, Contestant, Failed
from benchmarks.rows import measured_here, measured_on, put_rows

from togi import api
from togi.core.errors import TogiError
from togi.core.records import Interval, Outcome, Study, Trial
from togi.decide.faster import BETWEEN_PROCESSES
from togi.measure import RaceResult, race, ratio_interval
from togi.study.progress import Progress, ending

ROUNDS = 21
Range = tuple[float, float, float]
"""Median, low end, high end."""


@dataclass
class Row:
    """One program. Times in ms a call (of one sample), ratios above 1: faster."""

    program: str
    skipped: str = ""
    times_ms: dict[str, float] = field(default_factory=dict)
    over_eager: dict[str, Range] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    """Contestants that cannot run or whose results differ, and why."""
    best_peer: str = ""
    over_best_peer: Range = (math.nan, math.nan, math.nan)
    first_gain_s: float | None = None
    """Until a trial of the whole program was verified and faster beyond doubt; None: none was."""
    tuned_s: float = math.nan
    recipe: str = ""
    verdict: str = ""
    parts: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """What the study said of its parts and trials, each with its second."""
    served: dict[str, list[int]] = field(default_factory=dict)
    """By part: calls that its engine served, and calls that the original served, in the race."""
    time_limit_s: float = math.nan
    measured: str = field(default_factory=measured_here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="*", help="factories of program_subjects.py; default: all")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for tuning one program")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for comparing on one program")
    parser.add_argument("--optimum", default="", help="folder with optimum-intel and the transformers that it needs")
    parser.add_argument("--work", type=Path, help="keep artifacts here, and use those that are there already")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    missing = _missing()
    rows = []
    for program in options.programs or missing:
        row = Row(program, time_limit_s=options.time_limit)
        rows.append(row)
        if missing[program]:
            row.skipped = f"not installed: {', '.join(missing[program])}"
        else:
            try:
                compare(row, options.time_limit, options.budget, options.optimum, options.work)
            except Failed as failed:
                row.excluded[EAGER] = str(failed)
        print(line(row), flush=True)
        if options.json:
            put_rows(options.json, [asdict(row)], by="program")
    print(table([asdict(row) for row in rows]))


def _missing() -> dict[str, list[str]]:
    """Packages that each program lacks here, in the order of the subjects; asked in a child, which imports torch."""
    code = "import json, program_subjects as p; print(json.dumps({f.__name__: p.missing(f.__name__) for f in p.ALL}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=SUBJECTS.parent, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(row: Row, time_limit_s: float, budget_s: float, optimum: str, work: Path | None) -> None:
    """Tune the program, then race it."""
    with contestants.folder_of(row.program) as temporary:
        folder = Path(temporary)
        artifact = (work or folder) / f"{row.program}.togi"
        if not artifact.exists():
            tune(row, time_limit_s, folder, artifact)
        race_all(row, folder, artifact if artifact.exists() else None, budget_s, optimum)


@final
class Watch(Progress):
    """When each trial ended, and all that was told."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.ended: list[tuple[float, Trial]] = []
        self.told: list[str] = []

    def message(self, text: str) -> None:
        text = text.replace(f"{SUBJECTS.parent}/", "")  # where the benchmark lies is of no account
        self.told.append(f"{time.monotonic() - self.began:.0f} s: {text}")

    def trial_ended(self, trial: Trial) -> None:
        self.ended.append((time.monotonic() - self.began, trial))
        speedup = trial.timing.speedup_x if trial.timing is not None else None
        between = f" ({speedup.low:.2f} to {speedup.high:.2f})" if speedup is not None else ""
        self.message(f"{trial.recipe.label}: {ending(trial)}{between}")

    def first_gain_s(self, study: Study) -> float | None:
        """Of the whole program: trials of its parts are told here too and are not among the study's."""
        return next((at_s for at_s, trial in self.ended if _faster(trial) and trial in study.trials), None)


def _faster(trial: Trial) -> bool:
    timed = trial.outcome is Outcome.OK and trial.timing is not None
    return timed and trial.timing is not None and BETWEEN_PROCESSES.faster(trial.timing.speedup_x)


def tune(row: Row, time_limit_s: float, folder: Path, artifact: Path) -> None:
    watch = Watch()
    try:
        result = api.tune(
            f"{SUBJECTS}:{row.program}",
            time_limit_s=time_limit_s,
            journal=folder / "journal.sqlite",
            out=artifact,
            progress=watch,
        )
    except TogiError as error:
        row.excluded[TOGI] = row.verdict = str(error)
        return
    finally:
        row.tuned_s = time.monotonic() - watch.began
        row.told = watch.told
    study = result.record
    if study.best is not None and not study.best.is_reference:  # else what seemed a gain was not borne out
        row.first_gain_s = watch.first_gain_s(study)
    row.recipe = study.best.label if study.best is not None else ""
    row.verdict = study.verdict
    if study.program is not None:
        row.parts = [
            f"{part.key.label} ({part.share:.0%}): "
            + (f"{part.recipe.label} {part.speedup_x.median:.2f} x" if part.recipe and part.speedup_x else part.reason)
            for part in study.program.parts
        ]
        row.obstacles = [f"{each.path} ({each.share:.0%}): {each.reason}" for each in study.program.obstacles]


def race_all(row: Row, folder: Path, artifact: Path | None, budget_s: float, optimum: str) -> None:
    """Fill the row from one race of all that can run."""
    with ExitStack() as stack:
        eager = stack.enter_context(Contestant(EAGER, row.program, folder, artifact=None))
        standing = []
        for name in (*PEERS, TOGI):
            found = _start(row, name, folder, artifact, optimum)
            if found is not None:
                standing.append(stack.enter_context(found))
        result = race(standing, eager, budget_s=budget_s, seed=0, criterion=EVERYBODY, min_rounds=ROUNDS)
        row.served = {} if artifact is None else _counts(standing)
    _read(row, result, [each.name for each in standing])


def _start(row: Row, name: str, folder: Path, artifact: Path | None, optimum: str) -> Contestant | None:
    """None, with the reason in the row, where it cannot run."""
    path = ""
    if name == TOGI and artifact is None:
        row.excluded.setdefault(TOGI, "nothing was faster, or nothing could be saved: the program stays as it is")
        return None
    if name == OWN:
        if row.program not in OWN_PATHS:
            return None
        if row.program in OPTIMUM:
            if not optimum:
                row.excluded[OWN] = "no folder with optimum-intel was named"
                return None
            path = optimum
            _write_model(row.program, folder)
    try:
        found = Contestant(name, row.program, folder, artifact=artifact, path=path)
    except Failed as failed:
        row.excluded[name] = str(failed)
        return None
    if found.difference:
        row.excluded[name] = found.difference
    return found


def _write_model(program: str, folder: Path) -> None:
    code = "import sys, pathlib, program_peers as p; p.write_model(sys.argv[1], pathlib.Path(sys.argv[2]))"
    command = [sys.executable, "-c", code, program, str(folder)]
    subprocess.run(command, cwd=SUBJECTS.parent, capture_output=True, check=True)


def _counts(standing: Iterable[Contestant]) -> dict[str, list[int]]:
    for each in standing:
        if each.name == TOGI:
            return each.counts()
    return {}


def _read(row: Row, result: RaceResult, names: Sequence[str]) -> None:
    for name in (EAGER, *names):
        entry = result.entry(name)
        if entry.traceback:
            row.excluded[name] = entry.left_because
        if entry.latency_ms is not None:
            row.times_ms[name] = entry.latency_ms.median
        if entry.speedup_x is not None and name != EAGER:
            row.over_eager[name] = _range(entry.speedup_x)
    rivals = [name for name in names if name != TOGI and name not in row.excluded and name in row.over_eager]
    if not rivals:
        return
    row.best_peer = max(rivals, key=lambda name: row.over_eager[name][0])
    # where togi found nothing faster, the program stays as it is
    ours = result.entry(TOGI if TOGI in row.over_eager else EAGER).rounds_ms
    theirs = result.entry(row.best_peer).rounds_ms
    both = [(a, b) for a, b in zip(theirs, ours, strict=True) if a is not None and b is not None]
    row.over_best_peer = _range(ratio_interval([a for a, _ in both], [b for _, b in both]))


def _range(interval: Interval) -> Range:
    return interval.median, interval.low, interval.high


def _said(ratio: Range) -> str:
    median, low, high = ratio
    return f"{median:.2f} x ({low:.2f} to {high:.2f})"


def line(row: Row) -> str:
    if row.skipped:
        return f"{row.program:<18} left out: {row.skipped}"
    times = ", ".join(f"{name} {time_ms:.1f} ms" for name, time_ms in row.times_ms.items())
    gain = "none" if row.first_gain_s is None else f"{row.first_gain_s:.0f} s"
    said = [
        f"{row.program:<18} {_over_eager(asdict(row))[0]:.2f} x  [{times}]",
        f"first gain {gain}, whole {row.tuned_s:.0f} s",
    ]
    if row.best_peer:
        said.append(f"best peer {row.best_peer}: {_said(row.over_best_peer)}")
    said += [f"{name}: {why}" for name, why in row.excluded.items()]
    if row.served:
        said.append("served " + ", ".join(f"{path} {new} of {new + old}" for path, (new, old) in row.served.items()))
    return "; ".join([*said, *row.parts, *row.obstacles])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, with the geometric means below."""
    names = [EAGER, *PEERS, TOGI]
    lines = [
        f"| program | {' | '.join(names)} | togi over eager | over the best peer | first gain, whole (s) |",
        "|---|" + "--:|" * len(names) + "---|---|--:|",
    ]
    measured = [row for row in rows if EAGER in row["times_ms"]]
    for row in measured:
        cells = [_cell(row, name) for name in names]
        peer = f"{_said(row['over_best_peer'])}, {row['best_peer']}" if row["best_peer"] else "-"
        gain = "-" if row["first_gain_s"] is None else f"{row['first_gain_s']:.0f}"
        lines.append(
            f"| {row['program']} | {' | '.join(cells)} | {_said(_over_eager(row))} | {peer} | "
            f"{gain}, {row['tuned_s']:.0f} |"
        )
    lines += [f"\nLeft out: {row['program']}, {row['skipped']}" for row in rows if row["skipped"]]
    if not measured:
        return "\n".join(lines)
    lines.append(f"\nOver eager: {_mean(_over_eager(row)[0] for row in measured):.2f} x on {len(measured)} programs.")
    peers = [row["over_best_peer"][0] for row in measured if row["best_peer"]]
    if peers:
        below = sum(ratio < 0.98 for ratio in peers)
        lines.append(
            f"Over the best peer of each: {_mean(peers):.2f} x on {len(peers)}, lowest {min(peers):.2f}, "
            f"{below} below 0.98."
        )
    soon = sum(row["first_gain_s"] is not None and row["first_gain_s"] <= 60 for row in measured)
    lines += [f"First gain within 60 s on {soon} of {len(measured)}.", measured_on(rows)]
    return "\n".join(lines)


def _over_eager(row: dict[str, Any]) -> Range:
    """Of togi; 1 where it left the program as it is."""
    median, low, high = row["over_eager"].get(TOGI, (1.0, 1.0, 1.0))
    return median, low, high


def _cell(row: dict[str, Any], name: str) -> str:
    if name not in row["times_ms"]:
        return ("as it is" if name == TOGI else "fails") if name in row["excluded"] else "-"
    mark = " (differs)" if name in row["excluded"] else ""
    return f"{row['times_ms'][name]:.1f}{mark}"


def _mean(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


if __name__ == "__main__":
    main()
