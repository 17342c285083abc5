"""The tests that need a device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.gpu_parts.row import Row, attempt, row


def rows(device: str) -> Iterator[Row]:
    """The tests that need a device."""
    if device == "cpu":
        yield row("pytest -m gpu", None, "they need a CUDA device")
        return
    yield attempt("pytest -m gpu", "all pass", marked_tests)


def marked_tests() -> tuple[bool | None, str]:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, file=sys.stderr)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    return None if done.returncode == 5 else done.returncode == 0, last
