"""Finds calls by the method that they call, and by what they are given or leave open."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from togi.lint.source.compatibility import gives, guarded
from togi.lint.source.model import Source
from togi.lint.source.references import calls_of
from togi.lint.source.syntax import argument, is_constant


def calls_without(source: Source, names: Collection[str], keyword: str) -> Iterator[tuple[ast.Call, str]]:
    """Calls of these functions that leave ``keyword`` open.

    Not where ``**kwargs`` may hold it, and not where the file chooses between versions of torch.
    """
    for call, name in calls_of(source, names):
        hidden = any(word.arg is None for word in call.keywords)
        if not hidden and argument(call, keyword) is None and not guarded(source, call, gives(keyword)):
            yield call, name


def may_switch_on(call: ast.Call, name: str, position: int) -> bool:
    """Whether a flag that is off by default is given, and not as False."""
    flag = argument(call, name, position)
    return flag is not None and not is_constant(flag, False)


def method_calls(
    source: Source, names: Collection[str], within: ast.AST | None = None
) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    """Calls ``owner.NAME(...)`` in the file, or in one part of it, each with ``owner.NAME``."""
    for call in source.nodes(ast.Call) if within is None else source.walk(within, ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr in names:
            yield call, call.func
