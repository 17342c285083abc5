"""The GitHub action of the repository: its command is split into words, and its exit code is that of togi."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ACTION = Path(__file__).parents[2] / "action.yml"


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
