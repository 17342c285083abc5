"""What the reader makes of a pickle's opcodes: containers that know their memo slot, and the frames of a traceback."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

UNMEMOISED: Final = -1


class Items(list[Any]):
    """A list of the pickle."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = UNMEMOISED


class Mapping(dict[Any, Any]):
    """A dict of the pickle."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = UNMEMOISED


class HandedOver:
    """Stands where a trace entry or a segment stood that was given away, so that nothing of it is kept."""


HANDED_OVER: Final = HandedOver()


class Origin(IntEnum):
    """Whose code a frame is, the one to blame first."""

    USER = 0
    LIBRARY = 1
    NATIVE = 2


class Frame:
    """One frame of a traceback, as a line for people."""

    __slots__ = ("line", "origin")

    def __init__(self, line: str, origin: Origin) -> None:
        self.line = line
        self.origin = origin
