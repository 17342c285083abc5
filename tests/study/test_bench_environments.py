"""``togi bench --python``: one subject in two environments, each in its own interpreter."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import togi
from tests.offline import OFFLINE
from togi.cli.app import run
from togi.core.errors import TogiError
from togi.core.other_python import other_python, parse_pythons
from togi.core.records import Outcome
from togi.core.version import version
from togi.study.bench import run_bench
from togi.study.progress import Progress

Environment = Callable[..., str]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Makes the Python of an environment: this one, with variables and options of its own."""
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(togi.__file__).parents[1]), OFFLINE]))

    def make(name: str, options: str = "", **variables: str) -> str:
        path = tmp_path / name / "bin" / "python"
        path.parent.mkdir(parents=True)
        given = " ".join(f"{key}='{value}'" for key, value in variables.items())
        path.write_text(f'#!/bin/sh\n{given} exec "{sys.executable}" {options} "$@"\n', encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


@pytest.fixture
def subject(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(
        "import os, time, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        time.sleep(float(os.environ['SLEEPS']))\n"
        "        return super().forward(x)\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    return Net(8, 8), torch.randn(4, 8)\n",
        encoding="utf-8",
    )
    return f"{tmp_path / 'model.py'}:make"


@pytest.mark.thorough
def test_each_side_runs_in_its_own_interpreter_and_the_first_is_compared_with(
    subject: str, environment: Environment
) -> None:
    old, new = environment("old", SLEEPS="0.002"), environment("new", SLEEPS="0.03")
    found = togi.bench(subject, python=f"{old},{new}", time_limit_s=10)
    assert [contestant.name for contestant in found.contestants] == [f"{subject} ({old})", f"{subject} ({new})"]
    assert {contestant.outcome for contestant in found.contestants} == {Outcome.OK}
    slower = found.contestants[1].speedup_x
    assert slower is not None
    assert slower.high < 0.5
    assert [note.partition(": Python ")[0] for note in found.notes[:2]] == [old, new]
    assert all("torch " in note for note in found.notes[:2])


def test_an_environment_that_cannot_take_part_is_named_with_what_to_type(
    subject: str, environment: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bare = environment("good"), environment("bare", "-I -S")
    older = tmp_path / "older" / "togi-0.0.1.dist-info"
    older.mkdir(parents=True)
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: togi\nVersion: 0.0.1\n", encoding="utf-8")
    paths = os.pathsep.join([str(older.parent), os.environ["PYTHONPATH"]])
    other = environment("other", PYTHONPATH=paths)
    command = "-m pip install '"  # of a release by its number, of a clone in the clone
    for path, said in (
        (bare, f"has no togi, which each side of the race needs: {bare} {command}"),
        (other, f"has togi 0.0.1, and this is {version()}: both sides of a race need the same: {other} {command}"),
        (str(tmp_path / "none"), "is not a Python that runs here"),
        ("/bin/true", "is not a Python that runs here"),
    ):
        with pytest.raises(TogiError) as refused:
            togi.bench(subject, python=[good, path])
        assert said in str(refused.value)
    assert run(["bench", subject, "--python", f"{good},{bare}"]) == 2
    assert "has no togi" in capsys.readouterr().err
    assert other_python(good).path == good


def test_two_interpreters_and_something_to_build_are_needed(environment: Environment, tmp_path: Path) -> None:
    with pytest.raises(TogiError, match="is not two interpreters to compare"):
        parse_pythons("one/bin/python")
    with pytest.raises(TogiError, match="python='' is not two"):
        togi.bench("timm:resnet18", python="")
    with pytest.raises(TogiError, match="python is for locators and artifacts in processes of their own"):
        togi.bench(len, len, (), python="a,b")
    folder = str(tmp_path / "fast.togi")
    with pytest.raises(TogiError, match=r"fast\.togi was made in one environment"):
        run_bench(
            [folder],
            device=None,
            seed=0,
            time_limit_s=1,
            progress=Progress(),
            pythons=[environment("a"), environment("b")],
        )
