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
_VERDICT = "tests/verify/test_verdict.py"
_TRUTH = "tests/verify/test_truth_of_original.py"
_ERRORS = "tests/verify/test_error_measures.py"
_STRATEGY = "tests/search/test_strategy.py"
ROOMS = {
    "decide": {
        "decide/budget": ["tests/decide/test_choose.py"],
        "decide/choose": ["tests/decide/test_choose.py"],
        "decide/faithful": ["tests/decide/test_faithful.py"],
        "decide/faster": ["tests/decide/test_faster.py"],
    },
    "search": {
        "search/configurations": ["tests/search/test_space.py", _STRATEGY],
        "search/failures": ["tests/search/test_failures.py", _STRATEGY],
        "search/features": ["tests/search/test_model.py", _STRATEGY],
        "search/model": ["tests/search/test_model.py", _STRATEGY],
        "core/settings": ["tests/search/test_space.py", "tests/decide/test_faithful.py", _STRATEGY],
        "search/space": ["tests/search/test_space.py", _STRATEGY],
        "search/strategy": [_STRATEGY, "tests/search/test_search_benchmark.py"],
    },
    "measure": {
        "measure/interval": ["tests/measure/test_interval.py"],
        "measure/noise": ["tests/measure/test_measure_noise.py"],
        "measure/race_result": ["tests/measure/test_race.py"],
        "measure/race": ["tests/measure/test_race.py"],
    },
    "verify": {
        "verify/compare": [_ERRORS, _VERDICT],
        "verify/derived_inputs": ["tests/verify/test_derived_inputs.py"],
        "verify/float64": [_ERRORS, "tests/verify/test_own_error.py", _TRUTH],
        "verify/leaves": ["tests/verify/test_derived_inputs.py", _VERDICT],
        "verify/observe": [_VERDICT, _TRUTH],
        "verify/output_structure": [_VERDICT],
        "verify/reference": [_TRUTH, _VERDICT],
        "verify/truth": [_TRUTH, _VERDICT],
        "verify/units": ["tests/verify/test_own_error.py", _ERRORS, _VERDICT],
        "verify/verdict": [_VERDICT],
    },
}
"""Room: each module that is mutated, and the tests that should notice, those that concern it most first."""
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
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the tests of one mutant")
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
    with tempfile.TemporaryDirectory(prefix="togi-mutants-") as folder:
        tree = Path(folder)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x"], cwd=tree, check=True, input=archive)
        for module, tests in ROOMS[room].items():
            _prepare(tree, module, tests, given)
        possible = [(module, job) for module in ROOMS[room] for job in _jobs(_database(tree, module))]
        sample = random.Random(given.seed).sample(possible, min(given.sample, len(possible)))
        killed, lived = 0, list[str]()
        for module in ROOMS[room]:
            jobs = {job for of, job in sample if of == module}
            if jobs:
                _keep(_database(tree, module), jobs)
                _cosmic_ray(tree, module, given, "baseline")  # the tests pass without a mutant
                _cosmic_ray(tree, module, given, "exec", _database(tree, module).name)
                noticed, others = _results(_database(tree, module))
                killed, lived = killed + noticed, lived + others
        return len(possible), killed, lived


def _prepare(tree: Path, module: str, tests: list[str], given: argparse.Namespace) -> None:
    tests = [name for name in tests if (tree / name).exists()]
    config = _CONFIG.format(
        modules=[f"src/togi/{module}.py"], timeout_s=given.timeout, python=sys.executable, tests=" ".join(tests)
    )
    (tree / _config(module)).write_text(config, encoding="utf-8")
    _cosmic_ray(tree, module, given, "init", _database(tree, module).name)


def _config(module: str) -> str:
    return f"{module.replace('/', '_')}.toml"


def _database(tree: Path, module: str) -> Path:
    return (tree / _config(module)).with_suffix(".sqlite")


def _cosmic_ray(tree: Path, module: str, given: argparse.Namespace, command: str, *more: str) -> None:
    environment = {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    _call([given.cosmic_ray, command, _config(module), *more], tree, environment)


def _call(command: list[str], tree: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=tree, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _jobs(path: Path) -> list[str]:
    """Mutants of what is evaluated, in the order of the source."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute(
            "select job_id, operator_name from mutation_specs "
            "order by start_pos_row, start_pos_col, operator_name, occurrence"
        ).fetchall()
    return [job for job, operator in rows if not re.search(r"BinaryOperator_BitOr", operator)]


def _keep(path: Path, jobs: set[str]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for (job,) in database.execute("select job_id from work_items").fetchall():
            if job not in jobs:
                database.execute("delete from mutation_specs where job_id = ?", (job,))
                database.execute("delete from work_items where job_id = ?", (job,))


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
