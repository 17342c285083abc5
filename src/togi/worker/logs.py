"""Logs of child processes, which may print without end."""

from __future__ import annotations

import os
from pathlib import Path

_LONGEST_BYTES = 32 << 20
"""Of a longer log the beginning goes: a child that prints in a loop must not fill the disk."""


def tail(path: Path, limit: int) -> str:
    """The last ``limit`` bytes of a text file, whole lines, rubbish replaced. What is written meanwhile is left out: a
    writer may be faster than this reader, which would never reach the end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            return file.read(limit).decode(errors="replace").strip()
    except OSError:
        return ""


def shorten(path: Path, limit: int | None = None) -> None:
    """Keep the last quarter of a log that has grown beyond ``limit`` bytes; its writer goes on at the new end."""
    limit = _LONGEST_BYTES if limit is None else limit
    try:
        if path.stat().st_size > limit:
            last_quarter = tail(path, limit // 4)
            with path.open("r+b") as file:
                file.truncate()
                file.write(last_quarter.encode(errors="replace"))
    except OSError:
        return
