"""Files that others wrote: read only where they are plain files, and no further than a limit."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

_FLAGS = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
"""Of opening a file: not to wait for a pipe that took its place, and for no child. The last two are Windows's."""
_READ = sum(getattr(os, name, 0) for name in _FLAGS) | os.O_RDONLY


class NotPlainError(OSError):
    """A pipe, a device, a socket or a folder where a file was expected."""


def read_plain(path: str | Path, limit: int) -> bytes:
    """Returns the first ``limit`` bytes of a file. Reads no more than the size that the file has when it is opened.

    A pipe or a device may never end, or change when it is opened, so it is not opened. A file of /proc says that its
    size is 0, so nothing is read from one that would wait for the kernel.

    Raises OSError, and NotPlainError for what is not a file.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise NotPlainError("it is not a plain file")
    opened = os.open(path, _READ)  # between the two calls it may have become a pipe
    with open(opened, "rb", buffering=0) as file:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise NotPlainError("it is not a plain file")
        remaining = min(status.st_size, limit)
        parts: list[bytes] = []
        while remaining > 0 and (part := file.read(remaining)):
            parts.append(part)
            remaining -= len(part)
    return b"".join(parts)


def has_fields(path: Path, fields: Collection[str], limit: int) -> bool:
    """Whether a file of at most ``limit`` bytes is a JSON object with all of these fields: by them togi knows what it
    wrote, in this version or another. False for what cannot be read."""
    import json  # --help needs none

    try:
        document = json.loads(read_plain(path, limit))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and all(field in document for field in fields)


def sha256_of(path: Path) -> str:
    """The hash of a file's bytes, which are read in parts, in hexadecimal."""
    import hashlib  # OpenSSL's, which every command would wait for

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
