"""The rule ``handwritten-log1p``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_TABLES = re.compile(r"(^__init__$|table|coord|index|relative|anchor|grid|_rel($|_)|^(make|build|gen)_)")


class HandwrittenLog1p(SourceRule):
    """``log(1 + x)`` and ``exp(x) - 1`` written out.

    What it reports: ``torch.log(1 + x)`` and ``torch.exp(x) - 1``.

    Why it costs: two passes over memory and an intermediate in place of one pass; and for small ``x`` the sum rounds to
    1, so that the result is 0.

    When it stays silent: tables that are computed once, ``math`` and NumPy, other constants than 1, and sums of
    numbers without a tensor.

    Example::

        loss = torch.log(1 + x)

    Use instead::

        loss = torch.log1p(x)

    and ``torch.expm1(x)``. The values change in their last digits, so there is no fix.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.log1p.html
    """

    id = "handwritten-log1p"
    valid = (
        "import torch\n\ntorch.log1p(x)\ntorch.expm1(x)\ntorch.log(2 + x)\ntorch.exp(x) - 2\ntorch.exp(x) + 1\n",
        "import math\n\nmath.log(1 + x)\nmath.exp(x) - 1\n",
        "import torch\n\ntorch.log(x - 1)\n1 - torch.exp(x)\ntorch.exp(x - 1)\n",
        "import torch\n\ntorch.log(x, out=1 + y)\n",
        "import torch\n\ndef gen_relative_coords(n):\n    return torch.log(1.0 + torch.arange(n).abs())\n",
    )
    invalid = (
        "import torch\n\ny = torch.log(1 + x)  # here\nz = torch.log(x + 1.0)  # here\n",
        "import torch\n\ny = torch.exp(x) - 1  # here\n",
        "from torch import exp\n\ny = exp(-x * 2) - 1.0  # here\n",
    )

    def check(self, source: Source) -> Iterable[Finding]:
        for node in source.nodes(ast.BinOp):
            if _in_table(source, node):
                continue
            if _is_one(node.right) and isinstance(node.op, ast.Sub) and _calls(source, node.left, "torch.exp"):
                yield source.finding(self.id, node, *_words("exp(x) - 1", "torch.expm1(x)"))
            elif isinstance(node.op, ast.Add) and (_is_one(node.left) or _is_one(node.right)):
                above = source.parent(node)
                if isinstance(above, ast.Call) and node in above.args and _calls(source, above, "torch.log"):
                    yield source.finding(self.id, above, *_words("log(1 + x)", "torch.log1p(x)"))


def _in_table(source: Source, node: ast.AST) -> bool:
    """In a constructor or what makes a table for one: computed once."""
    name = getattr(source.function(node), "name", "")
    return source.hot(node) is None and bool(_TABLES.search(name))


def _words(what: str, instead: str) -> tuple[str, str]:
    return f"{what} takes two passes and an intermediate, and is 0 for small x", f"write {instead}"


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 1


def _calls(source: Source, node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and source.names.qualified(node.func, source.scope(node)) == name
