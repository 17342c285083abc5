"""The rule ``compile-per-call``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compiled import compile_calls, loop_names, names_in
from togi.lint.source.identifiers import decorators_mention, mentions
from togi.lint.source.model import Source
from togi.lint.source.surroundings import class_around, climb, function_name
from togi.lint.source.syntax import first_name

_CACHES = ("cache", "fixture", "once")
_FLAGS = ("hasattr", "_compiled", "first")


class CompilePerCall(SourceRule):
    """``torch.compile`` where it runs again and again.

    What it reports: ``torch.compile(...)`` in ``forward`` or another function that runs per batch, in a loop that does
    not change what is compiled, and a call of its result on the spot in a method (``torch.compile(self.net)(x)``).

    Why it costs: each call wraps its argument anew and looks its code up again (17 ms for a small function where this
    was written, torch 2.15). What is made anew each time (a module, a closure over other values) is compiled anew,
    which takes seconds.

    When it stays silent: what is compiled depends on the loop (a block of a model, a mode of a benchmark), or is made
    in a loop that runs no model (``[torch.compile(Layer()) for _ in range(64)]``). Nor does it report a result that is
    kept (under ``if self.compiled is None``, in a cached function), or functions that build a model and return it.

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
            if not _is_kept(source, call) and (reason := _why_again(source, call)):
                compiled = ast.unparse(call.args[0])
                yield source.finding(
                    self.id,
                    call,
                    f"torch.compile wraps {compiled} again in each call, and compiles what is made anew each time",
                    f"compile it once where it is made ({compiled} = torch.compile({compiled})), and call the result "
                    "here",
                    evidence=reason,
                )


def _why_again(source: Source, call: ast.Call) -> str:
    loops = source.loops(call)
    if any(names_in(source, call) & loop_names(source, loop) for loop in loops):
        return ""
    above = source.parent(call)
    called = isinstance(above, ast.Call) and above.func is call
    if isinstance(call.args[0], ast.Call) and not called:  # each pass makes another one, which is kept
        loops = tuple(loop for loop in loops if source.hotness.loop(loop))
    if loops:
        return f"it runs in each pass of the loop in line {loops[0].lineno}"
    if hot := source.hot(call):
        return hot.reason
    return "its result is called on the spot in a method" if called and _in_method(source, call) else ""


def _in_method(source: Source, call: ast.Call) -> bool:
    name = function_name(source, call)
    return class_around(source, call) is not None and bool(name) and not name.startswith(("__", "test", "setUp"))


def _is_kept(source: Source, call: ast.Call) -> bool:
    """Whether the result is cached: by a decorator, or under a test of whether it is there."""
    for above, child in climb(source, call):
        if (
            isinstance(above, ast.If | ast.IfExp)
            and child is not above.test
            and _asks_whether_there(source, above.test)
        ):
            return True
        if isinstance(above, ast.FunctionDef):
            return decorators_mention(source, above, _CACHES)
    return False


def _asks_whether_there(source: Source, test: ast.expr) -> bool:
    """``self.fast is None``, ``key not in cache``, ``not self.ready``, ``hasattr(self, "fast")``, ``first``."""
    for node in source.walk(test, ast.Compare, ast.UnaryOp):
        match node:
            case ast.Compare(ops=[ast.NotIn()]) | ast.Compare(ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                return True
            case ast.UnaryOp(op=ast.Not(), operand=flag):
                name = first_name(flag.func if isinstance(flag, ast.Call) else flag)
                if name == "self" or name.startswith("compiled"):
                    return True
    return mentions(source, test, _FLAGS)
