"""Why a file is not read (on): each error with the place, the reason and what to do."""

from __future__ import annotations

import pickletools

from togi.footprint.snapshot.file import SnapshotError, Window, truncated

_OPCODES = {ord(known.code): known for known in pickletools.opcodes}


def damaged(window: Window, position: int, error: Exception) -> SnapshotError:
    """``error`` came up at the opcode at ``position`` of the window's data."""
    known = _OPCODES.get(window.data[position])
    argument_bytes = max(1, known.arg.n) if known is not None and known.arg is not None else 0
    if window.ended and position + 1 + argument_bytes > len(window.data):
        return truncated(window.total_bytes)
    name = known.name if known is not None else "no opcode of pickle"
    return SnapshotError(
        f"the file is damaged at byte {window.begins + position:,} of {window.total_bytes:,} ({name}: "
        f"{type(error).__name__}), or it is no CUDA memory snapshot: write it with "
        "torch.cuda.memory._dump_snapshot(FILE) and copy it in binary mode"
    )


def refused(window: Window, position: int) -> SnapshotError:
    """An opcode that makes more than plain values, or a byte that is none."""
    at, code = window.begins + position, window.data[position]
    known = _OPCODES.get(code)
    if at == 0 or known is None:
        return SnapshotError(
            f"byte {at:,} is {code:#04x}, which no pickle of plain values has there: this is no CUDA memory snapshot, "
            "or it is damaged. torch.cuda.memory._dump_snapshot(FILE) writes one"
        )
    return SnapshotError(
        f"the pickle asks for {known.name} at byte {at:,}: that imports, calls or builds something, or is of no use in "
        "a CUDA memory snapshot; a file from elsewhere must not do so. Nothing of it was run. If it is a snapshot to "
        "which something was added, write it again with torch.cuda.memory._dump_snapshot(FILE)"
    )


def second_time(at: int) -> SnapshotError:
    return SnapshotError(
        f"byte {at:,} refers a second time to a trace entry or a segment. torch writes each once, and they are not "
        "kept while reading: this is no snapshot as torch writes it"
    )


def too_much(limit: int) -> SnapshotError:
    return SnapshotError(
        f"the pickle holds more than {limit:,} values that no CUDA memory snapshot has: it is something else, and "
        "reading on would fill the memory. torch.cuda.memory._dump_snapshot(FILE) writes a snapshot"
    )
