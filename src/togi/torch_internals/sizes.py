"""What an exported graph holds for: the comparisons of sizes that ``torch.export`` decided while it followed a module.

When torch drops ``ShapeEnv.guards``: the same comparisons are the code of ``ExportedProgram.module()._guards_fn``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_SMALLEST_OPEN = 2
"""A size that may vary is taken to be none of 0 and 1: what is decided for these alone says nothing of a module."""


def decided_sizes(program: ExportedProgram, sizes: Mapping[str, int | torch.SymInt]) -> list[str]:
    """Comparisons of input sizes, as Python, outside of which the graph may not be what the module does: a branch that
    was taken, a division without rest, two sizes that are one.

    Args:
        sizes: those that may vary, by what they are called in the answer.

    What is decided for the sizes 0 and 1, which nobody asked for, is left out.
    """
    symbols: dict[Any, Any] = {}
    decided: dict[Any, None] = {}
    for name, size in sizes.items():
        if not isinstance(size, torch.SymInt):
            continue
        expression, called = size.node.expr, sympy.Symbol(name, integer=True)
        if expression.is_Symbol and expression not in symbols:
            symbols[expression] = called
        else:
            decided[sympy.Eq(called, expression, evaluate=False)] = None
        environment = _environment(size)
        decided |= dict.fromkeys(environment.replace(guard.expr) for guard in environment.guards)
    for symbol, bounds in program.range_constraints.items():
        if bounds.upper != int_oo:
            decided[sympy.Le(symbol, bounds.upper, evaluate=False)] = None
        if bounds.lower > _SMALLEST_OPEN:
            decided[sympy.Ge(symbol, bounds.lower, evaluate=False)] = None
    known = {*symbols, *(sympy.Symbol(name, integer=True) for name in sizes)}
    told = [each.xreplace(symbols) for each in decided if _tells(each) and each.free_symbols <= known]
    return list(dict.fromkeys(map(PythonPrinter().doprint, told)))


def _tells(comparison: Any) -> bool:
    """It can fail, and not for a size of 0 or 1 alone."""
    of_small = isinstance(comparison, sympy.Ne) and any(side in (0, 1) for side in comparison.args)
    return bool(comparison.free_symbols) and not of_small


def only_value(size: torch.SymInt) -> int | None:
    """The one value that a size in an exported graph has for all that the graph holds for; None where it has
    several."""
    bounds = _environment(size).bound_sympy(size.node.expr)
    return int(bounds.lower) if bounds.lower == bounds.upper else None


def _environment(size: torch.SymInt) -> Any:
    return size.node.shape_env
