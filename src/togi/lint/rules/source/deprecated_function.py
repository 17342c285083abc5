"""The rule ``deprecated-function``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.data.deprecated_names import DEPRECATED, Deprecated
from togi.lint.finding import Edit, Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.compatibility import guarded, names_new, probed
from togi.lint.source.edits import end, insert, rename
from togi.lint.source.references import uses
from togi.lint.source.syntax import unpacks

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_ONE_ARGUMENT = {"torch.qr", "torch.cholesky", "torch.matrix_rank"}
"""Drop-in where only the matrix is given; their other parameters have changed."""
_ONLY_CALLS = {"torch.autograd.Variable"}


class DeprecatedFunction(SourceRule):
    """A function of PyTorch that is deprecated or gone, and has a successor.

    What it reports: use of a name that PyTorch deprecates (it warns, or its documentation says so), that raises by now,
    or that is the private twin of a public one, such as ``torch.symeig``, ``nn.init.xavier_uniform``,
    ``torch.backends.cuda.sdp_kernel``, ``functorch.vmap``.

    Why it costs: successors are where the work goes: ``torch.linalg`` has the batched and the faster drivers,
    ``sdpa_kernel`` the newer kernels. Removed names fail when the line is reached, which may be late in a run.

    When it stays silent: under a test of the version or of the name (``hasattr``, ``try``/``except``), and for names
    that this file defines itself. Deprecated arguments of functions that stay are not looked at.

    Example::

        nn.init.xavier_uniform(layer.weight)
        q, r = torch.qr(a)

    Use instead::

        nn.init.xavier_uniform_(layer.weight)
        q, r = torch.linalg.qr(a)

    Source: warnings and documentation of torch 2.15 and torchvision 0.29, asked by a test;
    https://docs.pytorch.org/docs/stable/linalg.html
    """

    id = "deprecated-function"

    def check(self, source: Source) -> Iterable[Finding]:
        for node, name in uses(source, DEPRECATED):
            entry = DEPRECATED[name]
            call = _call(source, node)
            named = call is None and (name in _ONLY_CALLS or _in_table(source, node))
            defined = not isinstance(node.ctx, ast.Load)  # a file that gives newer versions the old name back
            if not named and not defined and not _chosen(source, node, entry):
                fix = _fix(source, node, call, entry)
                yield source.finding(self.id, node, _message(entry), f"write {entry.instead}", fix=fix)


def _message(entry: Deprecated) -> str:
    if entry.removed:
        return f"{entry.name} is removed from newer versions of torch: there it raises RuntimeError when it is called"
    if entry.private:
        return f"{entry.name} is private and may change without notice; {entry.successor} is its public name"
    how = "by its documentation" if entry.documented else "and warns at run time"
    return f"{entry.name} is deprecated ({how}); new work goes into {entry.successor}"


def _in_table(source: Source, node: ast.expr) -> bool:
    """Whether a name only stands in a collection or a comparison: code about functions, which calls none of them."""
    return isinstance(source.parent(node), ast.List | ast.Set | ast.Tuple | ast.Dict | ast.Compare)


def _chosen(source: Source, node: ast.Name | ast.Attribute, entry: Deprecated) -> bool:
    """Whether the file knows of the successor and takes the old name for versions that lack it."""
    last = {entry.name.rpartition(".")[2], entry.successor.rpartition(".")[2]}
    new_way = names_new(source, DEPRECATED, last)
    return guarded(source, node, new_way) or _import_guarded(source, node) or any(probed(source, name) for name in last)


def _call(source: Source, node: ast.expr) -> ast.Call | None:
    above = source.parent(node)
    return above if isinstance(above, ast.Call) and above.func is node else None


def _import_guarded(source: Source, node: ast.Name | ast.Attribute) -> bool:
    """Whether the import behind this name is one of several, for several versions."""
    root: ast.expr = node
    while isinstance(root, ast.Attribute):
        root = root.value
    holder = source.names.holder(root.id, source.scope(node)) if isinstance(root, ast.Name) else None
    if holder is None or not isinstance(root, ast.Name):
        return False
    aliases = [binding for binding in holder.bindings[root.id] if isinstance(binding, ast.alias)]
    return any(isinstance(source.parent(alias), ast.ImportFrom) and guarded(source, alias) for alias in aliases)


def _fix(source: Source, node: ast.Name | ast.Attribute, call: ast.Call | None, entry: Deprecated) -> Fix | None:
    plain = call is not None and not call.keywords and not unpacks(call)
    if not entry.keywords and not plain:
        return None
    brackets: tuple[Edit, ...] = ()
    if entry.name == "torch.chain_matmul" and plain and call is not None and len(call.args) > 1:
        (line, column), (end_line, end_column) = end(source, call.func), end(source, call)
        brackets = (insert(line, column + 1, "["), insert(end_line, end_column - 1, "]"))
    elif not entry.drop_in and not (entry.name in _ONE_ARGUMENT and plain and call is not None and len(call.args) == 1):
        return None
    edits = rename(source, node, entry.name, entry.successor)
    return Fix(title=f"Use {entry.successor}", edits=(*edits, *brackets)) if edits else None
