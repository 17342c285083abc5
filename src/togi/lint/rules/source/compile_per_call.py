"""The rule ``compile-per-call``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compiled import compile_calls, loop_names, names_in

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_CACHES = ("cache", "lru_cache", "cached_property", "fixture", "once")
_ASKS = ("is None", "not in", "hasattr", "not self.", "is_compiled", "_compiled", "not compiled", "first")


class CompilePerCall(SourceRule):
    """``torch.compile`` where it runs again and again.

    What it reports: ``torch.compile(...)`` in ``forward`` or another function that runs per batch, in a loop that does
    not change what is compiled, and a call of its result on the spot in a method (``torch.compile(self.net)(x)``).

    Why it costs: each call wraps its argument anew and looks its code up again (17 ms for a small function where this
    was written, torch 2.15). What is made anew each time (a module, a closure over other values) is compiled anew,
    which takes seconds.

    When it stays silent: what is compiled depends on the loop (a block of a model, a mode of a benchmark), the result
    is kept (under ``if self.compiled is None``, in a cached function), and functions that build a model and return it.

    Example::

        def forward(self, x):
            return torch.compile(self.body)(x)

    Use instead::

        def __init__(self, body):
            super().__init__()
            self.body = torch.compile(body)

        def forward(self, x):
            return self.body(x)

    Source: https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """

    id = "compile-per-call"

    def check(self, source: Source) -> Iterable[Finding]:
        for call in compile_calls(source):
            if not _kept(source, call) and (reason := _again(source, call)):
                what = ast.unparse(call.args[0])
                yield source.finding(
                    self.id,
                    call,
                    f"torch.compile wraps {what} again in each call, and compiles what is made anew each time",
                    f"compile it once where it is made ({what} = torch.compile({what})), and call the result here",
                    evidence=reason,
                )


def _again(source: Source, call: ast.Call) -> str:
    loops = source.loops(call)
    if any(names_in(source, call) & loop_names(source, loop) for loop in loops):
        return ""
    if loops:
        return f"it runs in each pass of the loop in line {loops[0].lineno}"
    if hot := source.hot(call):
        return hot.reason
    called = isinstance(above := source.parent(call), ast.Call) and above.func is call
    return "its result is called on the spot in a method" if called and _in_method(source, call) else ""


def _in_method(source: Source, call: ast.Call) -> bool:
    function = source.function(call)
    in_class = function is not None and source.index.class_of(function) is not None
    return in_class and isinstance(function, ast.FunctionDef) and not function.name.startswith(("__", "test", "setUp"))


def _kept(source: Source, call: ast.Call) -> bool:
    """Whether the result is cached: by a decorator, or under a test of whether it is there."""
    child: ast.AST = call
    for above in source.ancestors(call):
        if isinstance(above, ast.If | ast.IfExp) and child is not above.test:
            if any(word in ast.unparse(above.test) for word in _ASKS):
                return True
        elif isinstance(above, ast.FunctionDef):
            return any(word in ast.unparse(one) for one in above.decorator_list for word in _CACHES)
        child = above
    return False
