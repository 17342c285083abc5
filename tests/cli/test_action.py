"""The GitHub action of the repository: its command is split into words, and its exit code is that of togi. Hooks for
pre-commit: they run as pre-commit runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
ACTION = ROOT / "action.yml"


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The action's last step, as GitHub runs it."""
    step = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"][-1]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        env={**os.environ, "COMMAND": command, "PATH": path, "TOGI_CACHE": str(folder / "cache")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_exit_codes_and_words(tmp_path: Path) -> None:
    (tmp_path / "a file.py").write_text("x = 1\n", encoding="utf-8")
    assert run("check 'a file.py' --output-format github", tmp_path).returncode == 0
    assert run("check 'no file.py'", tmp_path).returncode == 2
    done = run("check 'a file.py'; echo $(touch pwned)", tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "pwned").exists()


def test_its_process_waits_for_togi() -> None:
    """On Windows ``os.exec*`` ends the caller at once, with 0, whatever togi finds."""
    steps = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]
    assert not any("os.exec" in line.partition("#")[0] for step in steps for line in step.get("run", "").splitlines())


MODELS = """
import torch

def small():
    return torch.nn.Linear(4, 4), torch.ones(1, 4)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("hook", "args", "code", "said"),
    [
        ("togi-check", ["models.py"], 0, "Nothing found"),
        ("togi-check-fix", ["models.py"], 0, "Nothing found"),
        ("togi-memory", ["models.py:small", "--fail-over", "1"], 1, "is above --fail-over"),
        ("togi-bench", ["models.py:small", "models.py:none", "--fail-if-slower", "5%"], 2, "It has small"),
    ],
)
def test_each_pre_commit_hook_runs_its_command(
    hook: str, args: list[str], code: int, said: str, tmp_path: Path
) -> None:
    (found,) = [
        each
        for each in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
        if each["id"] == hook
    ]
    # files are handed over unless the hook says otherwise: with them, memory and bench would be wrong usage
    assert found.get("pass_filenames", True) == ("check" in hook)
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    command = [sys.executable, "-m", *found["entry"].split(), *args]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert said in done.stdout + done.stderr
