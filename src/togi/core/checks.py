"""Lines of running Python that only check something: their condition decides whether they raise, and nothing else."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import FrameType

from togi.core.user_code import is_users

_Span = tuple[int, int, int, int]
"""First line and column, last line and column."""


def only_raises(frame: FrameType, within: str) -> bool:
    """Whether ``frame`` evaluates an ``assert``, or the condition of an ``if`` that does nothing but raise, and no
    ``except`` of the user's goes on after that. False if the source is missing.

    Args:
        within: the path of the file whose code called all that matters here.
    """
    here = _span(frame)
    checks = _checks(frame.f_code.co_filename)
    if here is None or not any(_inside(here, test) or here == whole for test, whole in checks):
        return False
    return not any(_is_tried(caller) for caller in _callers(frame, within))


def _callers(frame: FrameType, within: str) -> Iterator[FrameType]:
    """The frame, and the user's that called it."""
    yield frame
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename != within:
        if is_users(caller.f_code.co_filename):
            yield caller
        caller = caller.f_back


def _is_tried(frame: FrameType) -> bool:
    span = _span(frame)
    return span is None or any(_inside(span, tried) for tried in _tried(frame.f_code.co_filename))


def _span(frame: FrameType) -> _Span | None:
    """The expression that the frame is at."""
    positions = list(frame.f_code.co_positions())  # type: ignore[attr-defined]  # Python 3.11, as all with torch
    line, last, start, end = positions[frame.f_lasti // 2]
    if line is None or last is None or start is None or end is None:
        return None
    return line, start, last, end


def _inside(inner: _Span, outer: _Span) -> bool:
    return inner[:2] >= outer[:2] and inner[2:] <= outer[2:]


@functools.lru_cache(maxsize=64)
def _tree(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


@functools.lru_cache(maxsize=64)
def _checks(path: str) -> list[tuple[_Span, _Span]]:
    """Conditions, each with its statement: a jump has the place of one or of the other."""
    checks = []
    for node in ast.walk(_tree(path)):
        match node:
            case ast.Assert(test=test) | ast.If(test=test, body=[ast.Raise()]):
                checks.append((_of(test, test), _of(node, node)))
    return checks


@functools.lru_cache(maxsize=64)
def _tried(path: str) -> list[_Span]:
    nodes = ast.walk(_tree(path))
    return [_of(node.body[0], node.body[-1]) for node in nodes if isinstance(node, ast.Try) and node.handlers]


def _of(first: ast.expr | ast.stmt, last: ast.expr | ast.stmt) -> _Span:
    return first.lineno, first.col_offset, last.end_lineno or 0, last.end_col_offset or 0
