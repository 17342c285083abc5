"""Local names that keep memory alive: who holds what, whenever the run reaches a new height.

``frame.f_locals`` of a function is a snapshot that the frame keeps, and with it every value, until it is asked for
again (Python 3.12 and older). The snapshot is therefore emptied at once; looking must not keep anything alive.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import FrameType
from typing import NamedTuple

from torch import Tensor

from togi.footprint.ledger import Ledger, Piece

_SMALLEST_BYTES = 64 * 1024


class Name(NamedTuple):
    """A local variable of a running function."""

    name: str
    line: str


def names_of(frames: Iterable[FrameType], ledger: Ledger) -> dict[Piece, list[Name]]:
    """The pieces that local names of running functions hold, directly or in a list, tuple or dict."""
    found: dict[Piece, list[Name]] = {}
    for frame in frames:
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            continue  # a module or class body: its names are no locals, and last as long as it does
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        snapshot = frame.f_locals
        for name, value in snapshot.items():
            for piece in _pieces(value, ledger):
                found.setdefault(piece, []).append(Name(name, place))
        if isinstance(snapshot, dict):
            snapshot.clear()
    return found


def _pieces(value: object, ledger: Ledger) -> Iterable[Piece]:
    if isinstance(value, Tensor):
        values: Iterable[object] = (value,)
    elif isinstance(value, list | tuple):
        values = value
    elif isinstance(value, dict):
        values = value.values()
    else:
        return
    for tensor in values:
        if isinstance(tensor, Tensor) and (piece := ledger.piece_of(tensor)) and piece.bytes >= _SMALLEST_BYTES:
            yield piece
