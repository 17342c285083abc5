"""Locks between processes: those that would do the same at the same time take turns."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_S = 900.0
"""Copying a large artifact to a slow disk takes minutes. Who holds a lock for longer is stopped, or waits for us."""
_POLL_S = 0.05


@contextmanager
def locked(path: Path, limit_s: float = LONGEST_S) -> Iterator[None]:
    """Others that lock the same folder, or file (which is made), wait.

    Some network file systems cannot lock, nor can Windows so. There nobody waits, and the block has to be right all the
    same. Raises TimeoutError where another process has held it for so long.
    """
    if sys.platform == "win32":
        yield
        return
    how = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, how, 0o600)
    try:
        _lock(descriptor, path, limit_s)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, limit_s: float) -> None:
    if sys.platform != "win32":
        import fcntl

        until = time.monotonic() + limit_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    held = f"another process has held a lock on {path} for {limit_s:g} s"
                    raise TimeoutError(errno.ETIMEDOUT, held) from None
                time.sleep(_POLL_S)
            except OSError:  # it cannot be locked
                return
            else:
                return
