"""Artifacts that were made to do harm: nothing of them is run, nothing is written, nothing hangs, one line says why.

Each is loaded with ``native=False`` in a process that watches (``hostile_child``): about 500 quick cases, and more
draws under ``thorough``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_cases import cases
from small_artifacts import make

from togi.techniques import recipe

HERE = Path(__file__).parent
MOST_LINE = 2000
BATCH = 300
"""So many are given to one process."""
LIMIT_S = 240.0
"""Of a batch, which takes a tenth of it."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of fixed sizes, which calls of hostile ones are made with."""
    folder = tmp_path_factory.mktemp("base") / "net.togi"
    make(folder, recipe(eager={}, no_grad={}))
    return folder


def test_nothing_gets_in(base: Path, artifact_of: Callable[[str], Path], tmp_path: Path) -> None:
    check({"eager": base} | {each: artifact_of(each) for each in ("onnxruntime", "openvino")}, 8, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["eager", "onnxruntime", "openvino", "torchscript"])
def test_nothing_gets_in_by_more_draws(
    engine: str, base: Path, artifact_of: Callable[[str], Path], tmp_path: Path
) -> None:
    check({"eager": base} | ({} if engine == "eager" else {engine: artifact_of(engine)}), 100, tmp_path, thorough=True)


def check(good: dict[str, Path], count: int, place: Path, *, thorough: bool = False) -> None:
    """``good``: by engine, the artifact that hostile ones are made of. ``count``: of each kind that is drawn."""
    names: dict[str, str] = {}
    made = ((engine, *case) for engine in good for case in cases(engine, count, thorough=thorough))
    for number, (engine, name, change) in enumerate(made):
        folder = Path(shutil.copytree(good[engine], place / f"{number}.togi"))
        change(folder)
        names[str(folder)] = f"{engine}: {name}"
    before = _tree(place)
    found = _loaded(list(good.values()), list(names), place)
    wrong = {names[path]: why for path, answer in found.items() if (why := _harm(answer))}
    assert not wrong, json.dumps(wrong, indent=1)[:20_000]
    assert found.keys() == names.keys()
    assert _tree(place) == before, "something was written, or is gone"
    refused = sum(answer["kind"] == "refused" for answer in found.values())
    assert refused > len(found) / 3, "most of these should not even load"


def _loaded(good: list[Path], paths: list[str], place: Path) -> dict[str, Any]:
    """What the child says of each. One that ends it is found out, and the rest is given to another."""
    work = place / "work"
    (work / "home").mkdir(parents=True)
    (work / "canary_side.py").write_text("open('sprung', 'w').close()\n", encoding="utf-8")
    environment = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(HERE), str(work)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(work / "home"),
    }
    found: dict[str, Any] = {}
    while rest := [path for path in paths if path not in found][:BATCH]:
        done = subprocess.run(
            [sys.executable, str(HERE / "hostile_child.py"), *map(str, good)],
            input=json.dumps(rest),
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            cwd=work,
            timeout=LIMIT_S,
            check=False,
        )
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found |= {answer["name"]: answer for answer in answers if "name" in answer}
        if done.returncode != 0:
            assert answers, done.stderr[-3000:]
            kind = f"ended the process with {done.returncode}: {done.stderr[-300:]}"
            found[answers[-1]["began"]] = {"kind": kind, "raised": "", "seen": []}
    assert not list((work / "home").iterdir())
    shutil.rmtree(work)
    return found


def _harm(answer: Any) -> str:
    if answer["seen"]:
        return f"did something: {answer['seen']}"
    if answer["kind"] not in ("loaded", "refused"):
        return f"{answer['kind']}: {answer['raised'][:300]}"
    for line in (answer["raised"], *answer.get("told", ())):
        if "\n" in line or len(line) > MOST_LINE:
            return f"not one line: {line[:300]!r}"
    return ""


def _tree(place: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_size for path in place.rglob("*") if not path.is_dir()}
