"""The rule ``timing-includes-compilation``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compiled import compilation
from togi.lint.source.syntax import last_name
from togi.lint.source.timing import Interval, event_intervals, intervals

if TYPE_CHECKING:
    from togi.lint.source.model import Source

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
        found: dict[ast.Call, Interval] = {}
        for interval in (*intervals(source), *event_intervals(source)):
            call = None if _meant(source, interval) else _first_compiled(source, interval)
            if call is not None:
                found.setdefault(call, interval)
        for call, interval in found.items():
            what = ast.unparse(call.func)
            yield source.finding(
                self.id,
                call,
                f"the first call of {what} compiles it, between two readings of the clock",
                f"call {what} a few times before the reading in line {interval.start.lineno}",
                evidence=f"measured from line {interval.start.lineno} to line {interval.reading.lineno}",
            )


def _first_compiled(source: Source, interval: Interval) -> ast.Call | None:
    for call in interval.calls:
        if isinstance(call.func, ast.Name | ast.Attribute) and compilation(source, call.func) is not None:
            return None if _called_before(source, call, interval) else call
    return None


def _called_before(source: Source, call: ast.Call, interval: Interval) -> bool:
    """Whether the same was called, or given to a function, above the first reading."""
    what, scope = ast.unparse(call.func), source.scope(call)
    for other in source.nodes(ast.Call):
        if other.lineno >= interval.start.lineno or source.scope(other) is not scope:
            continue
        name = last_name(other.func)
        given = name not in _PASSIVE and any(ast.unparse(arg) == what for arg in other.args)
        if given or ast.unparse(other.func) == what:
            return True
    return False


def _compiled_in(source: Source, interval: Interval, loop: ast.AST) -> bool:
    """Whether what is measured is compiled anew in each pass of the loop."""
    made = (compilation(source, call.func) for call in interval.calls if isinstance(call.func, ast.Name))
    return any(one is not None and loop in source.ancestors(one) for one in made)


def _meant(source: Source, interval: Interval) -> bool:
    statement = source.index.statement(interval.difference)
    loops = [loop for loop in source.loops(interval.start) if isinstance(loop, ast.For | ast.While)]
    if loops and not isinstance(statement, ast.AugAssign) and not _compiled_in(source, interval, loops[0]):
        return True
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = " ".join(ast.unparse(target) for target in (*targets, *getattr(interval.start, "targets", ()))).lower()
    return any(word in names for word in _MEANT)
