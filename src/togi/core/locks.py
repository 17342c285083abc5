"""Locks between processes: those that would do the same at the same time take turns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Others that lock the same folder, or file (which is made), wait.

    Some network file systems cannot lock, nor can Windows so. There nobody waits, and the block has to be right all the
    same.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    how = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, how, 0o600)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
