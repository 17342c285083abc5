"""What an exported graph holds for: the comparisons of sizes that ``torch.export`` decided while it followed a module.

When torch drops ``ShapeEnv.guards``: the same comparisons are the code of ``ExportedProgram.module()._guards_fn``.

Behind ``kernels_for_symbols``: torch._dispatch.python (torch 2.9 to 2.15; ``torch.export`` enters it). When it goes:
calls of resampling and of recurrent layers fix the sizes they meet, and what needs them open must refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_SMALLEST_OPEN = 2
"""A size that may vary is taken to be none of 0 and 1."""


@dataclass(frozen=True)
class Decided:
    """Comparisons of input sizes, as Python, outside of which a graph may not be what the module does."""

    firm: list[str]
    """A branch that was taken, a division without rest, two sizes that are one."""
    of_small: list[str]
    """They fail only where what is computed of sizes is 0 or 1. Torch itself asks for that of each tensor that a
    forward pass makes, so that few of them speak of the module."""


def decided_sizes(program: ExportedProgram, sizes: Mapping[str, int | torch.SymInt]) -> Decided:
    """Read what was decided by sizes.

    Args:
        sizes: those that may vary, by what they are called in the answer.

    Nothing tells what was decided by an input size that is 0 or 1 itself.
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
    names = {*symbols, *(sympy.Symbol(name, integer=True) for name in sizes)}
    firm: dict[str, None] = {}
    of_small: dict[str, None] = {}
    for comparison in decided:
        if comparison.free_symbols and comparison.free_symbols <= names:
            kind = of_small if _is_of_small(comparison) else firm
            kind[_Python().doprint(comparison.xreplace(symbols))] = None
    return Decided(list(firm), list(of_small))


def _is_of_small(comparison: Any) -> bool:
    if isinstance(comparison, sympy.Lt | sympy.Le):
        comparison = comparison.reversed
    match comparison:
        case sympy.Ne():
            return any(side in (0, 1) for side in comparison.args)
        case sympy.Gt():
            return bool(comparison.rhs == 1)
        case sympy.Ge():
            return bool(comparison.rhs == 2)
    return False


class _Python(PythonPrinter):
    """Prints sizes without torch's own functions."""

    def _print_ToFloat(self, expr: Any) -> str:
        return f"float({self._print(expr.args[0])})"


def only_value(size: torch.SymInt) -> int | None:
    """The one value that a size in an exported graph has for all that the graph holds for; None where it has
    several."""
    bounds = _environment(size).bound_sympy(size.node.expr)
    return int(bounds.lower) if bounds.lower == bounds.upper else None


def kernels_for_symbols() -> AbstractContextManager[Any]:
    """Inside, composite operators run as Python where their C++ would turn symbolic sizes into numbers."""
    from torch._dispatch.python import enable_python_dispatcher

    entered: AbstractContextManager[Any] = enable_python_dispatcher()
    return entered


def _environment(size: torch.SymInt) -> Any:
    return size.node.shape_env
