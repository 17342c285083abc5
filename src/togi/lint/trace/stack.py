"""Whose line is it: the user's part of the current call stack.

The user's are all frames but those of torch itself, of NumPy, of the standard library and of togi. A
model from timm or transformers is the user's code in this sense: its line is where the operation was written.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any

import numpy
import torch

import togi
from togi.lint.trace.record import Frame

_FOLDERS = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(numpy.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(togi.__file__)) + os.sep,
)
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_DEPTH = 24
"""Frames kept: a chain longer than that says nothing more."""


@functools.lru_cache(maxsize=4096)
def is_users(path: str) -> bool:
    """Whether a code object's file is the user's."""
    if path.startswith("<"):
        return path.startswith("<ipython") or path == "<stdin>"
    full = os.path.abspath(path)
    if full.startswith(_FOLDERS):
        return False
    return not full.startswith(_STANDARD) or "site-packages" in full or "dist-packages" in full


def user_frames(start: FrameType | None = None) -> list[FrameType]:
    """The user's frames of the calling thread, innermost first."""
    frame = start or sys._getframe(1)
    found: list[FrameType] = []
    walk: FrameType | None = frame
    while walk is not None and len(found) < _DEPTH:
        if is_users(walk.f_code.co_filename):
            found.append(walk)
        walk = walk.f_back
    return found


def described(frames: list[FrameType]) -> tuple[Frame, ...]:
    return tuple(_described(frame) for frame in frames)


def _described(frame: FrameType) -> Frame:
    path = frame.f_code.co_filename
    line, end_line, column, end_column = _position(frame.f_code, frame.f_lasti)
    line = line or frame.f_lineno
    return Frame(
        path=path,
        line=line,
        function=frame.f_code.co_name,
        code=linecache.getline(path, line).strip(),
        column=_characters(path, line, column or 0) + 1,
        end_line=end_line,
        end_column=None if end_column is None else _characters(path, end_line or line, end_column) + 1,
    )


def _characters(path: str, line: int, width: int) -> int:
    """How many characters the first ``width`` bytes of a line are."""
    return len(linecache.getline(path, line).encode()[:width].decode(errors="ignore")) or width


@functools.lru_cache(maxsize=4096)
def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    """``(line, end line, column, end column)`` of one instruction; lines from 1, columns in bytes from 0."""
    positions = list(code.co_positions())
    index = instruction // 2
    return positions[index] if 0 <= index < len(positions) else (None, None, None, None)


def layer_of(frames: list[FrameType], names: dict[int, str]) -> str:
    """Name of the innermost module whose method is running. ``names``: module id -> qualified name."""
    for frame in frames:
        owner: Any = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and id(owner) in names:
            return names[id(owner)]
    return ""
