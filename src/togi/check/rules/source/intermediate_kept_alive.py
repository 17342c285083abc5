"""The rule ``intermediate-kept-alive``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from togi.check.finding import Finding
from togi.check.rule import SourceRule
from togi.check.source.value import Kind, excerpt

if TYPE_CHECKING:
    from togi.check.source.model import Source

_TABLES = re.compile(r"(__init__|rel|index|coord|anchor|grid|table|mask|embed|freq|rope|init_weight|reset)")


class IntermediateKeptAlive(SourceRule):
    """A large intermediate stays alive past its last use.

    What it reports: a name bound to a broadcast over pairs (N x M elements out of N and M) whose last use comes before
    further results of that size are computed in the same function.

    Why it costs: the name keeps the tensor's memory until the function returns, so the peak holds all of them at once.
    One line, ``del lt, rb``, took torchvision's ``box_iou`` from nine times the result's size to six.

    When it stays silent: names deleted or bound anew, results used by the last large computation, tables built once
    (relative positions, masks, anchors), and everything that is not visibly a broadcast over pairs.

    Example::

        lt = torch.max(boxes1[:, None, :2], boxes2[:, :2])
        rb = torch.min(boxes1[:, None, 2:], boxes2[:, 2:])
        wh = (rb - lt).clamp(min=0)
        inter = wh[..., 0] * wh[..., 1]
        return inter / (area1[:, None] + area2 - inter)

    Use instead::

        lt = torch.max(boxes1[:, None, :2], boxes2[:, :2])
        rb = torch.min(boxes1[:, None, 2:], boxes2[:, 2:])
        wh = (rb - lt).clamp(min=0)
        del lt, rb
        inter = wh[..., 0] * wh[..., 1]
        del wh
        return inter / (area1[:, None] + area2 - inter)

    Or one function under ``torch.compile``, which never stores them, or ``togi.ops``, which works in tiles.

    Source: https://github.com/pytorch/vision/issues/7959
    """

    id = "intermediate-kept-alive"
    valid = (
        "import torch\n\ndef iou(a, b):\n    lt = torch.max(a[:, None, :2], b[:, :2])\n"
        "    rb = torch.min(a[:, None, 2:], b[:, 2:])\n    wh = (rb - lt).clamp(min=0)\n    del lt, rb\n"
        "    return wh[..., 0] * wh[..., 1]\n",
        "import torch\n\ndef distance(a, b):\n    difference = torch.relu(a)[:, None] - b[None, :]\n"
        "    return difference.pow(2).sum(-1)\n",
        "import torch\n\ndef small(a, b):\n    s = torch.relu(a)\n    t = torch.max(s, b)\n"
        "    u = (t - s).clamp(min=0)\n"
        "    return u * u\n",
        "import torch\nfrom torch import nn\n\nclass Attention(nn.Module):\n    def __init__(self, n):\n"
        "        coords = torch.arange(n)\n        relative = coords[:, None] - coords[None, :]\n"
        "        shifted = relative + n\n        self.index = shifted * 2 + shifted\n",
    )
    invalid = (
        "import torch\n\ndef iou(a, b, area1, area2):\n    lt = torch.max(a[:, None, :2], b[:, :2])  # here\n"
        "    rb = torch.min(a[:, None, 2:], b[:, 2:])  # here\n    wh = (rb - lt).clamp(min=0)  # here\n"
        "    inter = wh[:, :, 0] * wh[:, :, 1]\n    return inter / (area1[:, None] + area2 - inter)\n",
        "import torch\n\ndef kernel_matrix(x: torch.Tensor, y: torch.Tensor):\n"
        "    difference = x[:, None] - y[None, :]  # here\n    square = difference ** 2  # here\n"
        "    scaled = square / 3\n"
        "    return torch.exp(-scaled)\n",
    )

    def check(self, source: Source) -> Iterable[Finding]:
        if "None" not in source.text and "unsqueeze" not in source.text and "cdist" not in source.text:
            return
        for function in source.nodes(ast.FunctionDef):
            if not _TABLES.search(function.name.lower()):
                yield from self._in_block(source, function, function.body)

    def _in_block(self, source: Source, function: ast.FunctionDef, block: Sequence[ast.stmt]) -> Iterable[Finding]:
        large = [statement for statement in block if _allocates(source, statement)]
        if len(large) < 3:
            return
        for binding in large[:-2]:
            name = _bound(binding)
            if name is None or not _used_once(block, name):
                continue
            last = _last_use(block, name)
            if last is None or last is binding:
                continue
            later = [one for one in large if one.lineno > (last.end_lineno or last.lineno)]
            if later:
                yield source.finding(
                    self,
                    binding,
                    f"{name}, a broadcast over pairs, is last used in line {last.lineno} and stays alive while line "
                    f"{later[0].lineno} computes another one",
                    f"write `del {name}` after line {last.end_lineno}, or compute in one expression, in tiles "
                    "(togi.ops) or in one function under torch.compile, so that it is never stored",
                    evidence=f"{excerpt(_expression(binding), 60)} pairs every row of one operand with every row of "
                    "the other",
                )


def _expression(statement: ast.stmt) -> ast.expr:
    value = getattr(statement, "value", None)
    assert isinstance(value, ast.expr)
    return value


def _allocates(source: Source, statement: ast.stmt) -> bool:
    """Whether ``statement`` computes a large result (more than a view of one)."""
    if not isinstance(statement, ast.Assign | ast.Return | ast.AugAssign) or statement.value is None:
        return False
    value = statement.value
    if isinstance(value, ast.Name | ast.Subscript | ast.Attribute):
        return False
    return any(
        isinstance(one, ast.BinOp | ast.Call | ast.Compare) and _is_large(source, one) for one in ast.walk(value)
    )


def _is_large(source: Source, node: ast.expr) -> bool:
    value = source.value(node)
    return value.kind is Kind.TENSOR and value.large


def _bound(statement: ast.stmt) -> str | None:
    """The one name that ``statement`` binds to a large result."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _used_once(block: Sequence[ast.stmt], name: str) -> bool:
    """Bound once and never deleted, in this function."""
    stored = [
        node
        for statement in block
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
    ]
    return len(stored) == 1


def _last_use(block: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    using = [
        statement
        for statement in block
        if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))
    ]
    return using[-1] if using else None
