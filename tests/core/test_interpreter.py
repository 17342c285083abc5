"""The working folder hides nothing of the library: neither from children of togi nor from the action's steps."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.offline import OFFLINE
from togi.core.interpreter import python
from togi.machine.describe import machine
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef

pytestmark = pytest.mark.starts_servers

SOURCE = Path(__file__).parents[2] / "src" / "togi"
ROOT = SOURCE.parents[1]
STARTS = {
    "core/interpreter.py": "",
    "fleet/node.py": "sent by value",
    "doctor/engines.py": "with -P",
    "doctor/software.py": "shown",
}
"""The files that may name the interpreter."""
NAMES = sorted(
    {*sys.stdlib_module_names, "togi", "torch", "numpy", "typer", "click", "rich", "pydantic", "pip", "onnx"}
)


def test_one_function_starts_python() -> None:
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"
    }
    assert found == set(STARTS)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a module for each name of the library. Each notes that it was run."""
    for name in NAMES:
        code = f"import os\nos.mkdir({str(tmp_path / 'ran' / name)!r})\n"
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    (tmp_path / "ran").mkdir()
    return tmp_path


def ran(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "ran"))


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCE.parent), OFFLINE]),
        "TOGI_CACHE": str(folder / "cache"),
    }


def togi(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "togi", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=200, check=False
    )


def test_the_folder_would_be_searched(hostile: Path) -> None:
    subprocess.run([sys.executable, "-c", "import json"], cwd=hostile, capture_output=True, check=True)
    assert "json" in ran(hostile)


def test_a_child_also_where_the_caller_searches_the_folder_first(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    monkeypatch.syspath_prepend(str(hostile))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    subprocess.run(python("import json, socket, ctypes, select, togi.worker.protocol"), check=True)
    assert ran(hostile) == []


@pytest.mark.thorough
def test_a_server_that_runs_nothing_of_the_users(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    subject = SubjectRef(kind="nothing", path=("", str(hostile), *sys.path), cwd=str(hostile))
    with WorkerPool(subject, machine("cpu"), device="cpu", seed=0) as pool:
        pool.server({})
    assert ran(hostile) == []


def test_commands_that_run_nothing_of_the_folder(hostile: Path) -> None:
    assert togi(hostile, "check", "json.py").returncode == 0
    assert togi(hostile, "doctor").returncode in (0, 1)
    assert ran(hostile) == []


@pytest.mark.thorough
def test_claims_are_proven_without_the_folder(hostile: Path) -> None:
    assert "keep-freed-memory" in togi(hostile, "explain", "keep-freed-memory", "--prove").stdout
    assert ran(hostile) == []


def test_the_actions_steps(hostile: Path) -> None:
    yaml = pytest.importorskip("yaml")
    for step in yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]:
        fixed = {name: value for name, value in step["env"].items() if "${{" not in value}
        given = {"COMMAND": "check json.py", "ACTION": "--help", "EXTRAS": "", **fixed}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
            env={**environment(hostile), **given, "PATH": path},
            cwd=hostile,
            capture_output=True,
            check=True,
            timeout=100,
        )
    assert ran(hostile) == []
