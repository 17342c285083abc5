"""The bytes of a snapshot file, a few MiB at a time."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Final

from togi.core.errors import TogiError

CHUNK_BYTES: Final = 2**22
AHEAD_BYTES: Final = 2**16
"""So many bytes are at hand beyond any opcode, except at the end of the file."""


class SnapshotError(TogiError):
    """The file is no CUDA memory snapshot, is incomplete, or asks for more than plain data."""


def is_snapshot(path: str) -> bool:
    """A name or a first byte that only a pickle has. Says nothing of what is in it."""
    file = Path(path)
    if not file.is_file():
        return file.suffix in (".pickle", ".pkl")
    with file.open("rb") as opened:
        start = opened.read(2)
    return file.suffix in (".pickle", ".pkl") or (len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5)


class Window:
    """A part of the file. ``data`` begins at byte ``begins`` of it."""

    def __init__(self, opened: BinaryIO, total_bytes: int) -> None:
        self._opened = opened
        self.total_bytes = total_bytes
        self.begins = 0
        self.data = opened.read(CHUNK_BYTES)

    @property
    def ended(self) -> bool:
        """Nothing follows ``data``."""
        return self.begins + len(self.data) >= self.total_bytes

    def forward(self, position: int, needed_bytes: int = 0) -> None:
        """Drop what lies before ``position`` of ``data`` and read on, so that ``needed_bytes`` are at hand.

        Raises SnapshotError when the file has not so many.
        """
        rest = self.data[position:]
        self.begins += position
        if self.begins + needed_bytes > self.total_bytes:
            raise truncated(self.total_bytes)
        more = self._opened.read(max(CHUNK_BYTES, needed_bytes - len(rest)))
        if not more:
            raise truncated(self.begins + len(rest))
        self.data = rest + more


def truncated(total_bytes: int) -> SnapshotError:
    return SnapshotError(
        f"the snapshot ends at byte {total_bytes:,} in the middle of a value: it was cut off while it was written or "
        "copied, and nothing can be said of what is missing. Compare its size with the original's and copy it again"
    )
