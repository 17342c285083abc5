"""Artifacts that were made to do harm: nothing of them is run, nothing is written, nothing hangs, one line says why.

Each is loaded with ``native=False`` in a process that watches (``hostile_child``): 520 quick cases, and more
under ``thorough``.
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
import torch
from torch import nn

from tests.artifact.hostile_cases import cases, rewritten
from tests.artifact.small_artifacts import make
from togi.artifact.load import FallbackWarning, load
from togi.core.errors import ArtifactError
from togi.techniques import recipe

ROOT = Path(__file__).parents[2]
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


def test_hostile_artifacts_run_and_write_nothing(
    base: Path, artifact_of: Callable[[str], Path], tmp_path: Path
) -> None:
    check({"eager": base} | {each: artifact_of(each) for each in ("onnxruntime", "openvino")}, 8, [], tmp_path)


class Writes(nn.Module):
    """TorchScript that writes a file while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(1)

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return self.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        torch.save(state[0], "sprung")
        self.weight = state[0]
        self.training = state[1]

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.weight, scale


def test_torchscript_is_a_program_and_is_left_out_as_one(
    artifact_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = Path(shutil.copytree(artifact_of("torchscript"), tmp_path / "net.togi"))
    torch.jit.script(Writes()).save(str(artifact / "torchscript" / "model.ts"))
    rewritten(artifact, lambda _: None)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(FallbackWarning, match="a program, which native=False leaves out"):
        assert load(artifact, native=False).engine == "eager"
    assert not (tmp_path / "sprung").exists()
    rewritten(artifact, lambda document: document.update(chain=document["chain"][:1]))
    with pytest.raises(ArtifactError, match="native=False"):
        load(artifact, native=False)
    assert not (tmp_path / "sprung").exists()
    load(artifact)
    assert (tmp_path / "sprung").exists(), "it does what it is left out for"


@pytest.mark.thorough(40)
@pytest.mark.parametrize("engine", ["eager", "onnxruntime", "openvino", "torchscript"])
def test_more_drawn_hostile_artifacts_run_and_write_nothing(
    engine: str, base: Path, artifact_of: Callable[[str], Path], tmp_path: Path
) -> None:
    good = base if engine == "eager" else artifact_of(engine)
    check({engine: good}, 30, [base], tmp_path, thorough=True)


def check(good: dict[str, Path], count: int, more: list[Path], place: Path, *, thorough: bool = False) -> None:
    """``good``: by engine, the artifact that hostile ones are made of. ``count``: of each kind that is drawn. ``more``:
    good ones of the engines that these fall back to."""
    names: dict[str, str] = {}
    made = ((engine, *case) for engine in good for case in cases(engine, count, thorough=thorough))
    for number, (engine, name, change) in enumerate(made):
        folder = Path(shutil.copytree(good[engine], place / f"{number}.togi"))
        change(folder)
        names[str(folder)] = f"{engine}: {name}"
    before = _tree(place)
    found = _loaded([*good.values(), *more], list(names), place)
    wrong = {names[path]: why for path, answer in found.items() if (why := _harm(answer))}
    assert not wrong, json.dumps(wrong, indent=1)[:20_000]
    assert found.keys() == names.keys()
    assert _tree(place) == before, "something was written, or is gone"
    refused = sum(answer["kind"] == "refused" for answer in found.values())
    assert refused > len(found) / 10, "those whose fallback is spoilt as well should not even load"


def _loaded(good: list[Path], paths: list[str], place: Path) -> dict[str, Any]:
    """What the child says of each. One that ends it is found out, and the rest is given to another."""
    work = place / "work"
    (work / "home").mkdir(parents=True)
    (work / "canary_side.py").write_text("open('sprung', 'w').close()\n", encoding="utf-8")
    environment = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT), str(work)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(work / "home"),
    }
    found: dict[str, Any] = {}
    while rest := [path for path in paths if path not in found][:BATCH]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.artifact.hostile_child", *map(str, good)],
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
