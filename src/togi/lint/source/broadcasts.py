"""Estimates how much memory a block of statements holds at once, counted in results of broadcasts over pairs.

A result that pairs N rows with M rows is counted as two units, one without its last axis (summed, or one coordinate of
it) as one. Everything else is small next to them and counts nothing. Temporaries within an expression live until their
operation is done, names until they are deleted, bound anew, or the block ends.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from togi.lint.source import torch_api
from togi.lint.source.syntax import called_method, inserts_axis, is_pairwise, last_name
from togi.lint.source.value import ValueKind

if TYPE_CHECKING:
    from togi.lint.source.model import Source


PAIRS, PAIRS_OF_NUMBERS = 2.0, 1.0
_VIEWS = frozenset(
    """view reshape permute transpose squeeze unsqueeze expand expand_as t T mT flatten unflatten detach unbind chunk
    split narrow movedim swapaxes view_as broadcast_to diagonal select size dim to float contiguous type_as""".split()
)
"""Methods that allocate nothing, or nothing if all is well."""
_PICKING = frozenset(
    """gather index_select take_along_dim nonzero unique masked_select diagonal multinomial argwhere bincount""".split()
)
"""Functions that take a part of their operand."""
_JOINING = frozenset(["cat", "concat", "concatenate", "hstack", "vstack", "dstack"])
"""A row that was expanded to be joined with others is one next to many (a feature that stays the same), no pair."""


@dataclass(frozen=True, slots=True)
class StatementNeeds:
    """One statement: what it needs besides the names that live before it, and what it binds."""

    statement: ast.stmt
    temporary: float
    binds: Mapping[str, float]
    """Size of each name that is bound; 0 for one that no longer holds anything large."""
    reads: frozenset[str]


@dataclass(slots=True)
class BroadcastPeak:
    """The highest sum over a block, and where."""

    units: float = 0.0
    step: StatementNeeds | None = None
    alive: dict[str, float] = field(default_factory=dict)


def steps(source: Source, block: Sequence[ast.stmt]) -> list[StatementNeeds]:
    sizes: dict[str, float] = {}
    return [_step(source, statement, sizes) for statement in block]


def peak(block: Sequence[StatementNeeds], *, freed: bool = False) -> BroadcastPeak:
    """``freed`` deletes every name after its last use."""
    highest, alive = BroadcastPeak(), dict[str, float]()
    last = {name: at for at, step in enumerate(block) for name in step.reads}
    for at, step in enumerate(block):
        units = sum(alive.values()) + step.temporary
        if units > highest.units:
            highest = BroadcastPeak(units, step, dict(alive))
        alive |= step.binds
        if freed:
            alive = {name: size for name, size in alive.items() if last.get(name, -1) > at}
    return highest


def _step(source: Source, statement: ast.stmt, sizes: dict[str, float]) -> StatementNeeds:
    names = source.walk(statement, ast.Name)
    reads = frozenset(node.id for node in names if isinstance(node.ctx, ast.Load))
    stored = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Assign | ast.Return | ast.AugAssign | ast.AnnAssign) and isinstance(value, ast.expr):
        temporary, result = _expression(source, value, sizes)
        binds = dict.fromkeys(stored, 0.0)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            binds[statement.targets[0].id] = result
            sizes[statement.targets[0].id] = size(source, value, sizes)
        return StatementNeeds(statement, temporary, binds if not isinstance(statement, ast.AugAssign) else {}, reads)
    inner = source.walk(statement, ast.BinOp, ast.Call)
    return StatementNeeds(statement, max((size(source, part, sizes) for part in inner), default=0.0), {}, reads)


def _expression(source: Source, node: ast.expr, sizes: Mapping[str, float]) -> tuple[float, float]:
    """What evaluating ``node`` needs at most, and what its result holds that was not there before."""
    highest = held = 0.0
    own = size(source, node, sizes)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword):
            child = child.value
        if isinstance(child, ast.expr):
            needed, result = _expression(source, child, sizes)
            spreads = isinstance(child, ast.BinOp) and (inserts_axis(child.left) or inserts_axis(child.right))
            if own and spreads and not result:
                needed = result = PAIRS_OF_NUMBERS  # area1[:, None] + area2, next to a result over pairs
            highest, held = max(highest, held + needed), held + result
    if not allocates(node):
        return highest, held
    return max(highest, held + own), own


def allocates(node: ast.AST) -> bool:
    """Whether ``node`` itself computes something new, not a view."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        return name not in _VIEWS and not name.endswith("_")
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.Call | ast.Compare)


def size(source: Source, node: ast.expr, sizes: Mapping[str, float]) -> float:
    """Units of the value of ``node``."""
    if isinstance(node, ast.Name):
        return sizes.get(node.id, 0.0)
    if isinstance(node, ast.Subscript):
        base = size(source, node.value, sizes)
        index = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
        return _narrower(base) if isinstance(index, ast.Constant) and isinstance(index.value, int) else base
    if isinstance(node, ast.Attribute):
        return size(source, node.value, sizes) if node.attr in ("T", "mT") else 0.0
    if isinstance(node, ast.UnaryOp):
        return size(source, node.operand, sizes)
    if isinstance(node, ast.Compare):
        return max(size(source, side, sizes) for side in (node.left, *node.comparators)) / 4  # a byte for each float
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.MatMult):
            return PAIRS_OF_NUMBERS if _is_transposed(node.right) else 0.0
        pairs = PAIRS if _pairs(source, node, node.left, node.right) else 0.0
        return max(pairs, size(source, node.left, sizes), size(source, node.right, sizes))
    return _of_call(source, node, sizes) if isinstance(node, ast.Call) else 0.0


def _of_call(source: Source, node: ast.Call, sizes: Mapping[str, float]) -> float:
    func = node.func
    name = last_name(func)
    if name in ("cdist", "outer", "ger", "pairwise_distances"):
        return PAIRS_OF_NUMBERS
    if name in _JOINING:
        return 0.0
    if source.value(node).kind is not ValueKind.TENSOR:
        return 0.0
    args = [*node.args]
    if isinstance(func, ast.Attribute) and source.value(func.value).kind is ValueKind.TENSOR:
        args.insert(0, func.value)
    operands = [part for arg in args for part in (arg.elts if isinstance(arg, ast.List | ast.Tuple) else [arg])]
    largest = max((size(source, operand, sizes) for operand in operands), default=0.0)
    if name in ("expand", "repeat", "tile") and operands and inserts_axis(operands[0]):
        return PAIRS
    if name in ("mm", "bmm", "matmul") and len(operands) == 2 and _is_transposed(operands[1]):
        return PAIRS_OF_NUMBERS
    pairs = len(operands) >= 2 and _pairs(source, node, operands[0], operands[1])
    if pairs and name in ("max", "min", "maximum", "minimum", "sub", "add", "mul", "div", "pow", "where", "logaddexp"):
        return PAIRS
    two_tensors = len(operands) > 1 and source.value(operands[1]).kind is ValueKind.TENSOR
    if name in torch_api.REDUCTIONS and len(operands) + len(node.keywords) > 1 and not two_tensors:
        return _narrower(largest)
    changes = name.rstrip("_") in torch_api.CONTRACTING or name in _PICKING
    return largest if name in _VIEWS or (torch_api.returns_tensor(f"torch.{name}") and not changes) else 0.0


def _is_transposed(node: ast.expr) -> bool:
    """``y.T``, ``y.transpose(-1, -2)``: with it a product pairs rows with rows."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("T", "mT")
    return called_method(node) in ("t", "transpose", "mT")


def _pairs(source: Source, node: ast.expr, left: ast.expr, right: ast.expr) -> bool:
    value = source.value(node)
    return value.kind is ValueKind.TENSOR and value.dtype not in ("bool", "int64") and is_pairwise(left, right)


def _narrower(units: float) -> float:
    return PAIRS_OF_NUMBERS if units == PAIRS else 0.0


_DEPTH = 3
"""Calls of calls that are followed; also what ends a recursion."""


def takes_one_row(source: Source, function: ast.FunctionDef, depth: int = _DEPTH) -> bool:
    """Whether ``function`` is called in this file, and every call hands over ``x.unsqueeze(0)``, ``x[None]`` or
    ``torch.tensor([[...]])``, or stands in a function of which the same is true."""
    sites = source.callers.sites(function)
    return bool(sites) and all(_hands_one_row(source, site, depth) for site in sites)


def _hands_one_row(source: Source, site: ast.Call, depth: int) -> bool:
    around = source.function(site)
    if any(_is_one_row(arg) or _is_bound_to_one_row(source, arg, around) for arg in site.args):
        return True
    return isinstance(around, ast.FunctionDef) and depth > 0 and takes_one_row(source, around, depth - 1)


def _is_bound_to_one_row(source: Source, node: ast.expr, around: ast.AST | None) -> bool:
    if not isinstance(node, ast.Name) or around is None:
        return False
    values = [
        statement.value
        for statement in source.walk(around, ast.Assign)
        if any(ast.unparse(target) == node.id for target in statement.targets)
    ]
    return bool(values) and all(map(_is_one_row, values))


def _is_one_row(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="unsqueeze"), args=[ast.Constant(value=0)]):
            return True
        case ast.Call(func=ast.Attribute(attr="tensor"), args=[ast.List(elts=[ast.List()]), *_]):
            return True
        case ast.Subscript(slice=ast.Constant(value=None) | ast.Tuple(elts=[ast.Constant(value=None), *_])):
            return True
    return False
