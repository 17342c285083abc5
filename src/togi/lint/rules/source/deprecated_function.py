"""The rule ``deprecated-function``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.data.deprecated_names import DEPRECATED, Deprecated
from togi.lint.finding import Edit, Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.compatibility import guarded, names_new, probed
from togi.lint.source.edits import end, insert, rename
from togi.lint.source.fixes import fix
from togi.lint.source.model import Source
from togi.lint.source.references import uses
from togi.lint.source.syntax import first_name, unpacks

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

    Fix safety: safe, and offered only where the successor takes the same arguments and returns the same. Other places
    have to be changed by hand, as the remedy says.

    Source: warnings and documentation of torch 2.15 and torchvision 0.29, asked by a test;
    https://docs.pytorch.org/docs/stable/linalg.html
    """

    id = "deprecated-function"

    def check(self, source: Source) -> Iterable[Finding]:
        for node, name in uses(source, DEPRECATED):
            deprecated = DEPRECATED[name]
            above = source.parent(node)
            call = above if isinstance(above, ast.Call) and above.func is node else None
            only_named = call is None and (name in _ONLY_CALLS or _in_table(above))
            defined = not isinstance(node.ctx, ast.Load)  # a file that gives newer versions the old name back
            if not only_named and not defined and not _is_chosen(source, node, deprecated):
                yield source.finding(
                    self.id,
                    node,
                    _message(deprecated),
                    f"write {deprecated.instead}",
                    fix=_fix(source, node, call, deprecated),
                )


def _message(deprecated: Deprecated) -> str:
    name, successor = deprecated.name, deprecated.successor
    if deprecated.removed:
        return f"{name} is removed from newer versions of torch: there it raises RuntimeError when it is called"
    if deprecated.private:
        return f"{name} is private and may change without notice; {successor} is its public name"
    how = "by its documentation" if deprecated.documented else "and warns at run time"
    return f"{name} is deprecated ({how}); new work goes into {successor}"


def _in_table(above: ast.AST | None) -> bool:
    """Whether a name only stands in a collection or a comparison: code about functions, which calls none of them."""
    return isinstance(above, ast.List | ast.Set | ast.Tuple | ast.Dict | ast.Compare)


def _is_chosen(source: Source, node: ast.Name | ast.Attribute, deprecated: Deprecated) -> bool:
    """Whether the file knows of the successor and takes the old name for versions that lack it."""
    last = {deprecated.name.rpartition(".")[2], deprecated.successor.rpartition(".")[2]}
    if guarded(source, node, names_new(source, DEPRECATED, last)) or any(probed(source, name) for name in last):
        return True
    bindings = source.names.bindings(first_name(node), source.scope(node))
    imports = [binding for binding in bindings if isinstance(binding, ast.alias)]
    return any(isinstance(source.parent(alias), ast.ImportFrom) and guarded(source, alias) for alias in imports)


def _fix(source: Source, node: ast.Name | ast.Attribute, call: ast.Call | None, deprecated: Deprecated) -> Fix | None:
    plain = call is not None and not call.keywords and not unpacks(call)
    if not plain and not deprecated.keywords:
        return None
    count = len(call.args) if plain and call is not None else 0
    brackets: tuple[Edit, ...] = ()
    if deprecated.name == "torch.chain_matmul" and call is not None and count > 1:
        (line, column), (end_line, end_column) = end(source, call.func), end(source, call)
        brackets = (insert(line, column + 1, "["), insert(end_line, end_column - 1, "]"))
    elif not deprecated.drop_in and not (deprecated.name in _ONE_ARGUMENT and count == 1):
        return None
    if isinstance(node, ast.Name) and not _others_take_another_name(source, node, deprecated):
        return None
    edits = rename(source, node, deprecated.name, deprecated.successor)
    return fix(f"Use {deprecated.successor}", *edits, *brackets) if edits else None


def _others_take_another_name(source: Source, node: ast.Name, deprecated: Deprecated) -> bool:
    """Whether nothing but the name has to change in the other uses of an import, which change with it."""
    others = [use for use in source.nodes(ast.Name) if use.id == node.id and use is not node]
    calls = [call for use in others if isinstance(call := source.parent(use), ast.Call) and call.func is use]
    plain = len(calls) == len(others) and not any(call.keywords or unpacks(call) for call in calls)
    return not others or (deprecated.drop_in and (plain or deprecated.keywords))
