"""The rule ``timing-includes-compilation``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compiled import compilation
from togi.lint.source.identifiers import mentions
from togi.lint.source.model import Source
from togi.lint.source.surroundings import statement_loops
from togi.lint.source.syntax import last_name
from togi.lint.source.timing import TimedStretch, event_intervals, intervals

_MEANT = ("compil", "warm", "first", "cold", "startup", "trace")
_PASSIVE = {"print", "compile", "len", "isinstance", "type", "id", "repr"}


class TimingIncludesCompilation(SourceRule):
    """A measurement whose first call compiles.

    What it reports: the first call of a function or module that this file compiles with ``torch.compile``, between two
    readings of a clock.

    Why it costs: ``torch.compile`` compiles at the first call (seconds to minutes), so the time says nothing about the
    steady state, and the compiled model looks slower than it is.

    When it stays silent: it was called, or given to another function (a warm-up), before the first reading; what is
    measured is named after compilation, warm-up or the first call; and measurements of each pass of a loop, of which
    the first may be dropped.

    Example::

        fast = torch.compile(model)
        start = time.perf_counter()
        fast(x)
        print(time.perf_counter() - start)

    Use instead::

        fast = torch.compile(model)
        for _ in range(3):
            fast(x)
        start = time.perf_counter()
        fast(x)
        print(time.perf_counter() - start)

    Source: https://docs.pytorch.org/tutorials/intermediate/torch_compile_tutorial.html
    """

    id = "timing-includes-compilation"

    def check(self, source: Source) -> Iterable[Finding]:
        if "compile" not in source.text:
            return
        first_calls: dict[ast.Call, TimedStretch] = {}
        for interval in (*intervals(source), *event_intervals(source)):
            call = None if _is_meant(source, interval) else _first_compiled(source, interval)
            if call is not None:
                first_calls.setdefault(call, interval)
        for call, interval in first_calls.items():
            function, start = ast.unparse(call.func), interval.start.lineno
            yield source.finding(
                self.id,
                call,
                f"the first call of {function} compiles it, between two readings of the clock",
                f"call {function} a few times before the reading in line {start}",
                evidence=f"measured from line {start} to line {interval.reading.lineno}",
            )


def _is_meant(source: Source, interval: TimedStretch) -> bool:
    """Whether compilation is what is measured, or each pass of a loop, of which the first may be dropped."""
    statement = source.index.statement(interval.difference)
    loop = next(statement_loops(source, interval.start), None)
    if loop is not None and not isinstance(statement, ast.AugAssign) and not _compiled_in(source, interval, loop):
        return True
    results = statement.targets if isinstance(statement, ast.Assign) else []
    starts = interval.start.targets if isinstance(interval.start, ast.Assign) else []
    return any(mentions(source, target, _MEANT) for target in (*results, *starts))


def _compiled_in(source: Source, interval: TimedStretch, loop: ast.AST) -> bool:
    """Whether what is measured is compiled anew in each pass of the loop."""
    compiled = (compilation(source, call.func) for call in interval.calls if isinstance(call.func, ast.Name))
    return any(node is not None and loop in source.ancestors(node) for node in compiled)


def _first_compiled(source: Source, interval: TimedStretch) -> ast.Call | None:
    for call in interval.calls:
        if isinstance(call.func, ast.Name | ast.Attribute) and compilation(source, call.func) is not None:
            return None if _is_called_before(source, call, interval) else call
    return None


def _is_called_before(source: Source, call: ast.Call, interval: TimedStretch) -> bool:
    """Whether the same was called, or given to a function, above the first reading."""
    function, scope = ast.unparse(call.func), source.scope(call)
    for earlier in source.nodes(ast.Call):
        if earlier.lineno >= interval.start.lineno or source.scope(earlier) is not scope:
            continue
        warms_up = last_name(earlier.func) not in _PASSIVE
        if ast.unparse(earlier.func) == function or (
            warms_up and any(ast.unparse(arg) == function for arg in earlier.args)
        ):
            return True
    return False
