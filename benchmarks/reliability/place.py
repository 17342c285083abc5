"""Where the experiments happen: a home, a journal and a temporary folder of their own; children that answer."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from togi.core.records import Study
from togi.journal import Journal

SUBJECT = """
import torch

def subject():
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten())
    return torch.nn.Sequential(*layers).eval(), torch.randn(2, 3, 8, 8)
"""
TECHNIQUES = "fold_batch_norm,channels_last,torchscript,inference_mode"
LONGEST_S = 240.0
"""For a run with a time limit of 20 s on a busy machine."""
_MARK = "TOGI_RELIABILITY"
_GONE_S = 30.0
"""Until everything of a killed run must be gone; a server that is importing torch looks up when it has done so."""


class Place:
    """A home, a journal, a temporary folder and the subject; ``togi`` runs that can be found again."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, subject: str = SUBJECT) -> None:
        self.folder = folder
        self.temporary, self.mark = folder / "tmp", uuid.uuid4().hex
        self.journal, self.out = folder / "journal.sqlite", folder / "out.togi"
        self.temporary.mkdir(parents=True)
        (folder / "tiny.py").write_text(subject, encoding="utf-8")
        self.environment = {
            **os.environ,
            "TOGI_HOME": str(folder / "home"),
            "TMPDIR": str(self.temporary),
            "OMP_NUM_THREADS": "1",
            _MARK: self.mark,
            **(environment or {}),
        }

    def start(self, *options: str) -> subprocess.Popen[str]:
        """``togi tune``; later options replace earlier ones."""
        tune = ["-m", "togi", "tune", "tiny.py:subject", "--only", TECHNIQUES, "--time-limit", "20s"]
        return self.python(*tune, "--journal", str(self.journal), "--out", str(self.out), "--force", *options)

    def python(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE if arguments[0] == "-c" else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[int]:
        """Those of its runs that live."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"{_MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def left(self, within_s: float = _GONE_S) -> list[str]:
        """Processes and temporary files that are still there after a while."""
        until = time.monotonic() + within_s
        while True:
            files = [str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*")]
            found = [f"process {pid}" for pid in self.processes()] + files
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def recorded(self) -> Counter[str]:
        """Labels of the trials in the journal."""
        return Counter(trial.recipe.label for study in self.studies() for trial in study.trials)

    def studies(self) -> list[Study]:
        if not self.journal.exists() or not self.journal.stat().st_size:
            return []
        with Journal.open(self.journal, create=False) as journal:
            return [journal.read(entry.id) for entry in journal.studies()]


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


_TRIAL = re.compile(r"^\[[^\]]*\] \d+\. (.*?): ")


def ended(told: str) -> Counter[str]:
    """Labels of the trials of which a run said that they had ended."""
    return Counter(match[1] for line in told.splitlines() if (match := _TRIAL.match(line)))


def in_child(job: Callable[[], str], folder: Path, longest_s: float = 60.0) -> str:
    """Its answer, or how its process died."""
    answer = folder / "answer"
    pid = os.fork()
    if pid == 0:
        _answer(job, answer)
    until = time.monotonic() + longest_s
    while (status := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hung"
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status[1])
    return answer.read_text(encoding="utf-8") if code == 0 else f"died ({code})"


def _answer(job: Callable[[], str], answer: Path) -> NoReturn:
    try:
        answer.write_text(job(), encoding="utf-8")
    except BaseException as error:
        answer.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
    os._exit(0)
