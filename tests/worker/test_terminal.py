"""Code that asks at the terminal fails at once in the processes of a study, which nobody sees."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

_SUBJECT = """
import getpass, torch

def subject():
    getpass.getpass("token: ")
    return torch.nn.Linear(2, 2), torch.ones(1, 2)
"""
_TUNE = """
import sys
from togi.core.errors import TogiError
from togi.machine.describe import machine
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef

try:
    WorkerPool(SubjectRef.here("locator", sys.argv[1]), machine(), device="cpu", seed=0).__enter__()
except TogiError as error:
    print(f"told: {error}")
"""


@pytest.mark.thorough
def test_asking_there_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(_SUBJECT, encoding="utf-8")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", _TUNE, f"{tmp_path / 'asks.py'}:subject"])
    said = b""
    try:
        while data := os.read(terminal, 4096):
            said += data
    except OSError:  # Linux's end of a terminal
        pass
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    assert b"told: " in said
    assert b"asks.py" in said
