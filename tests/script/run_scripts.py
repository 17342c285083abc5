"""Runs scripts in processes of their own, under Python and under ``togi run``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import togi
from tests.offline import OFFLINE

SOURCE = str(Path(togi.__file__).parents[1])
PATHS = os.pathsep.join([SOURCE, OFFLINE])


def written(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PATHS, "TOGI_HOME": str(folder / "home"), "PYTHONDONTWRITEBYTECODE": "1"}


def run_python(script: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, script.name, *arguments], script.parent, stdin, 60)


def run_togi(
    script: Path, *arguments: str, options: tuple[str, ...] = ("--report",), stdin: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """``options``: of togi; ``arguments``: of the script."""
    command = [sys.executable, "-m", "togi", "run", *options, script.name, *arguments]
    return _run(command, script.parent, stdin, timeout_s)


def _run(command: list[str], folder: Path, stdin: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(folder),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
