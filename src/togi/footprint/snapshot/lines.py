"""Which line of a traceback is the user's: the innermost frame outside torch and the standard library."""

from __future__ import annotations

import re
from collections.abc import Iterable

from togi.footprint.snapshot.values import Frame, Origin

_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]|^<frozen |^<eval_with_key>|^torch[/\\]")
_STANDARD_LIBRARY = re.compile(r"[/\\]lib(?:64)?[/\\]python3[^/\\]*[/\\](?!(?:site|dist)-packages[/\\])", re.IGNORECASE)
_NATIVE = re.compile(r"^$|^\?\?|\.(?:c|cc|cpp|cxx|cu|h|hpp|inl|pyx|S|so(?:\.\d+)*)$")


def frame_of(filename: str, line: int, name: str) -> Frame:
    """``filename`` is what torch wrote: a path, ``??`` or nothing for native code, ``<...>`` for generated code."""
    return Frame(f"{filename}:{line} in {name}", _origin(filename))


def users_line(innermost_first: Iterable[Frame]) -> str:
    """``train.py:31 in step``; without a frame of the user's the innermost of a library, else of native code, else
    nothing."""
    fallback: Frame | None = None
    for frame in innermost_first:
        if frame.origin is Origin.USER:
            return frame.line
        if fallback is None or frame.origin < fallback.origin:
            fallback = frame
    return fallback.line if fallback is not None else ""


def _origin(filename: str) -> Origin:
    if _NATIVE.search(filename):
        return Origin.NATIVE
    if _LIBRARY.search(filename) or _STANDARD_LIBRARY.search(filename):
        return Origin.LIBRARY
    return Origin.USER
