"""A pickle read in pieces, and the errors that name a place in it: the place, the reason, and what to do."""

from __future__ import annotations

import pickletools
from typing import BinaryIO, Final

from togi.core.errors import TogiError

CHUNK_BYTES: Final = 2**22
_OPCODES = {ord(known.code): known for known in pickletools.opcodes}


class SnapshotError(TogiError):
    """The file is not a CUDA memory snapshot, is incomplete, or asks for more than plain data."""


class Window:
    """A part of the file. ``data`` begins at byte ``begins`` of it."""

    def __init__(self, opened: BinaryIO, total_bytes: int) -> None:
        self._opened = opened
        self.total_bytes = total_bytes
        self.begins = 0
        self.data = opened.read(CHUNK_BYTES)

    @property
    def ended(self) -> bool:
        """True if nothing follows ``data``."""
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


def damaged(window: Window, position: int, error: Exception) -> SnapshotError:
    """``error`` came up at the opcode at ``position`` of the window's data."""
    known = _OPCODES.get(window.data[position])
    argument_bytes = max(1, known.arg.n) if known is not None and known.arg is not None else 0
    if window.ended and position + 1 + argument_bytes > len(window.data):
        return truncated(window.total_bytes)
    name = known.name if known is not None else "no opcode of pickle"
    return SnapshotError(
        f"the file is damaged at byte {window.begins + position:,} of {window.total_bytes:,} ({name}: "
        f"{type(error).__name__}), or it is not a CUDA memory snapshot: write it with "
        "torch.cuda.memory._dump_snapshot(FILE) and copy it in binary mode"
    )


def refused(window: Window, position: int) -> SnapshotError:
    """An opcode that makes more than plain values, or a byte that is none."""
    at, code = window.begins + position, window.data[position]
    known = _OPCODES.get(code)
    if at == 0 or known is None:
        return SnapshotError(
            f"byte {at:,} is {code:#04x}, which no pickle of plain values has there: this is not a CUDA memory "
            "snapshot, or it is damaged. torch.cuda.memory._dump_snapshot(FILE) writes one"
        )
    return SnapshotError(
        f"the pickle asks for {known.name} at byte {at:,}: that imports, calls or builds something, or is of no use in "
        "a CUDA memory snapshot; a file from elsewhere must not do so. Nothing of it was run. If it is a snapshot to "
        "which something was added, write it again with torch.cuda.memory._dump_snapshot(FILE)"
    )


def second_time(at: int) -> SnapshotError:
    return SnapshotError(
        f"byte {at:,} refers a second time to a trace entry or a segment. torch writes each once, and they are not "
        "kept while reading: this is not a snapshot as torch writes it"
    )


def too_much(limit: int) -> SnapshotError:
    return SnapshotError(
        f"the pickle holds more than {limit:,} values that no CUDA memory snapshot has: it is something else, and "
        "reading on would fill the memory. torch.cuda.memory._dump_snapshot(FILE) writes a snapshot"
    )


def truncated(total_bytes: int) -> SnapshotError:
    return SnapshotError(
        f"the snapshot ends at byte {total_bytes:,} in the middle of a value: it was cut off while it was written or "
        "copied, and what is missing is unknown. Compare its size with the original's and copy it again"
    )
