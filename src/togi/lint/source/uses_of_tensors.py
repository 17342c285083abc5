"""Follows what becomes of a tensor: whole outputs of a model, and data of the CPU that meets the device."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from togi.lint.source.references import reaching
from togi.lint.source.syntax import position
from togi.lint.source.value import ValueKind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_SAME_SIZE = frozenset(
    """detach clone float half bfloat16 double contiguous view reshape flatten squeeze unsqueeze permute transpose
    sigmoid softmax log_softmax tanh relu exp clamp cpu cuda to numpy""".split()
)
"""Methods and functions of torch whose result is as large as what they are given."""
_DEPTH = 8


def is_whole_output(source: Source, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Whether ``node`` is what a model returned, perhaps moved, cast or squashed, and nothing smaller."""
    if depth == 0:
        return False
    if isinstance(node, ast.Name):
        value = reaching(source, node)
        return value is not None and is_whole_output(source, value, depth - 1)
    if not isinstance(node, ast.Call):
        return False
    if source.value(node.func).kind is ValueKind.MODULE:
        name = source.value(node.func).qualified or ""
        return "loss" not in name.lower()
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _SAME_SIZE:
        return False
    of_torch = source.dotted(node.func).startswith("torch.")
    inner = (node.args[0] if node.args else None) if of_torch else node.func.value
    return inner is not None and is_whole_output(source, inner, depth - 1)


def meets_device(source: Source, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Whether a tensor of the CPU may meet one of the device, or leaves the function, as far as the file shows.

    False where a local name holds it, or what is computed from it, and nothing that is read of that name does.
    """
    above = source.parent(node)
    if depth == 0 or isinstance(above, ast.Return | ast.Yield | ast.Tuple | ast.List | ast.Dict | ast.keyword):
        return True
    if isinstance(above, ast.BinOp | ast.Compare):
        operands = [part for part in ast.iter_child_nodes(above) if isinstance(part, ast.expr) and part is not node]
        return any(source.value(part).on_device for part in operands) or meets_device(source, above, depth - 1)
    if isinstance(above, ast.Subscript):
        indexes = above.slice is node and source.value(above.value).on_device
        return indexes or (above.value is node and meets_device(source, above, depth - 1))
    if isinstance(above, ast.Attribute):
        call = source.parent(above)
        return isinstance(call, ast.Call) and call.func is above and _goes_on(source, call, above.attr, node, depth)
    if isinstance(above, ast.Call):
        name = source.dotted(above.func)
        return not name.startswith("torch.") or _goes_on(source, above, name.rpartition(".")[2], node, depth)
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):
        loads = source.scope(node).loads.get(above.targets[0].id, [])
        return any(meets_device(source, load, depth - 1) for load in loads if position(load) > position(above))
    return isinstance(above, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Starred)


def _goes_on(source: Source, call: ast.Call, name: str, node: ast.expr, depth: int) -> bool:
    """Follows the tensor through a method or a function of torch: its operands there, and then the result."""
    if name in ("item", "tolist", "numpy", "size", "dim", "numel", "equal", "allclose"):
        return False
    if any(source.value(arg).on_device for arg in call.args if arg is not node):
        return True
    return meets_device(source, call, depth - 1)
