"""Share of mutants that the tests let live, in the rooms that decide: decide, search, measure, verify.

    python benchmarks/mutants.py --sample 40 --seed 0

cosmic-ray (``pip install cosmic-ray``) changes one operator, number, condition or statement at a time, in a copy of the
tree; a mutant that no test of its room notices lives. Mutants of annotations (``int | None``) are left out: they are
never evaluated. A sample is drawn by a seed, since all of them would take a night. Prints a table and each survivor.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = {
    "decide": (["src/togi/decide"], ["tests/decide"]),
    "search": (["src/togi/search"], ["tests/search"]),
    "measure": (["src/togi/measure/interval.py", "src/togi/measure/race.py", "src/togi/measure/noise.py"], []),
    "verify": (["src/togi/verify"], ["tests/verify"]),
}
"""Room: what is mutated, and the tests that should notice (for measure those of intervals, races and noise)."""
_CONFIG = """[cosmic-ray]
module-path = {modules}
timeout = {timeout_s}
excluded-modules = []
test-command = "{python} -m pytest -x -q -p no:cacheprovider {tests}"
[cosmic-ray.distributor]
name = "local"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=40, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for the tests of one mutant")
    parser.add_argument("--cosmic-ray", default=shutil.which("cosmic-ray") or "cosmic-ray", help="the program")
    given = parser.parse_args()
    print("| room | mutants | sampled | killed | survived | share |")
    print("|---|--:|--:|--:|--:|--:|")
    survivors: list[str] = []
    totals = [0, 0]
    for room in given.rooms.split(","):
        possible, killed, lived = mutate(room, given)
        survivors += lived
        count = killed + len(lived)
        totals = [totals[0] + count, totals[1] + len(lived)]
        print(
            f"| {room} | {possible} | {count} | {killed} | {len(lived)} | {len(lived) / max(count, 1):.0%} |",
            flush=True,
        )
    print(f"| all | | {totals[0]} | {totals[0] - totals[1]} | {totals[1]} | {totals[1] / max(totals[0], 1):.0%} |")
    print("\n".join(["", "Survivors:", *survivors]))
    return 0


def mutate(room: str, given: argparse.Namespace) -> tuple[int, int, list[str]]:
    """How many mutants the room has, how many of the sample were noticed, and the others as differences."""
    modules, tests = ROOMS[room]
    tests = tests or [str(p.relative_to(ROOT)) for p in sorted((ROOT / "tests" / room).glob("test_*.py")) if _counts(p)]
    with tempfile.TemporaryDirectory(prefix="togi-mutants-") as folder:
        tree = Path(folder)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x"], cwd=tree, check=True, input=archive)
        config = _CONFIG.format(modules=modules, timeout_s=given.timeout, python=sys.executable, tests=" ".join(tests))
        (tree / "mutants.toml").write_text(config)
        run = [given.cosmic_ray]
        environment = {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        _call([*run, "baseline", "mutants.toml"], tree, environment)
        _call([*run, "init", "mutants.toml", "mutants.sqlite"], tree, environment)
        possible = _keep_a_sample(tree / "mutants.sqlite", given.sample, given.seed)
        _call([*run, "exec", "mutants.toml", "mutants.sqlite"], tree, environment)
        return possible, *_results(tree / "mutants.sqlite")


def _counts(path: Path) -> bool:
    return any(word in path.name for word in ("interval", "race", "noise"))


def _call(command: list[str], tree: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=tree, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _keep_a_sample(path: Path, count: int, seed: int) -> int:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        rows = database.execute(
            "select job_id, operator_name, module_path, start_pos_row from mutation_specs"
        ).fetchall()
        real = [row[0] for row in rows if not re.search(r"BinaryOperator_BitOr", row[1])]
        kept = set(random.Random(seed).sample(sorted(real), min(count, len(real))))
        for job, _ in rows:
            if job not in kept:
                database.execute("delete from mutation_specs where job_id = ?", (job,))
                database.execute("delete from work_items where job_id = ?", (job,))
    return len(real)


def _results(path: Path) -> tuple[int, list[str]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute("select test_outcome, diff from work_results").fetchall()
    lived = [_short(diff) for outcome, diff in rows if str(outcome).upper().endswith("SURVIVED")]
    return len(rows) - len(lived), lived


def _short(diff: str) -> str:
    lines = diff.splitlines()
    name = next((line[6:] for line in lines if line.startswith("+++ b/")), "")
    changed = [line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    return "\n".join([name, *(f"    {line}" for line in changed)])


if __name__ == "__main__":
    raise SystemExit(main())
