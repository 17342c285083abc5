"""The rule ``deprecated-amp``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Edit, Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.compatibility import guarded, names_new
from togi.lint.source.edits import end, insert, rename, rename_module, start, text_of
from togi.lint.source.references import called, import_of, uses
from togi.lint.source.syntax import first_name, unpacks

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_FUNCTIONS = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")
_MODULES = ("", ".autocast_mode", ".grad_scaler")
_NAMES = {
    f"torch.{device}.amp{module}.{name}": (device, name)
    for device in ("cuda", "cpu")
    for module in _MODULES
    for name in _FUNCTIONS
}
_POSITIONAL = {"autocast": ("enabled", "dtype", "cache_enabled"), "custom_fwd": ("fwd",), "custom_bwd": ("bwd",)}
"""Parameters by position of the old functions whose successors order them differently."""


class DeprecatedAmp(SourceRule):
    """Mixed precision through ``torch.cuda.amp`` or ``torch.cpu.amp``.

    What it reports: ``autocast``, ``GradScaler``, ``custom_fwd`` and ``custom_bwd`` of ``torch.cuda.amp`` and
    ``torch.cpu.amp``.

    Why it costs: each call warns (FutureWarning since torch 2.4), the names will go, and the code is tied to one kind
    of device. ``torch.amp`` takes the device as an argument.

    When it stays silent: ``torch.amp`` and ``torch.autocast``, and code for several versions: under ``try``, under a
    test of the version or of a name (also through a flag of this or another file), next to a branch that takes
    ``torch.amp``.

    Example::

        with torch.cuda.amp.autocast():
            loss = model(x)

    Use instead::

        with torch.amp.autocast("cuda"):
            loss = model(x)

    Source: https://docs.pytorch.org/docs/stable/amp.html
    """

    id = "deprecated-amp"

    def check(self, source: Source) -> Iterable[Finding]:
        plain = ((node, name) for node, name in uses(source, _NAMES) if called(source, node))
        found = [(node, name) for node, name in plain if not _chosen(source, node, name)]
        for node, name in found:
            device, function = _NAMES[name]
            yield source.finding(
                self.id,
                node,
                f"torch.{device}.amp.{function} is deprecated and warns; it ties the code to one kind of device",
                f"write {_instead(device, function)}",
                fix=_fix(source, node, found),
            )


def _chosen(source: Source, node: ast.Name | ast.Attribute, name: str) -> bool:
    new_way = names_new(source, _NAMES, (_NAMES[name][1],))
    if guarded(source, node, new_way):
        return True
    if isinstance(node, ast.Attribute):
        return _import_chosen(source, node)
    found = import_of(source, node, name)
    return found is None or guarded(source, found[0])


def _import_chosen(source: Source, node: ast.Attribute) -> bool:
    """Whether the module of ``amp.autocast`` is one of several, each imported for some versions."""
    root = first_name(node)
    holder = source.names.holder(root, source.scope(node))
    bindings = holder.bindings[root] if holder is not None else []
    imports = [one for one in bindings if isinstance(one, ast.alias)]
    return len(bindings) > 1 and any(guarded(source, one) for one in imports)


def _instead(device: str, function: str) -> str:
    if function in ("autocast", "GradScaler"):
        return f'torch.amp.{function}("{device}", ...)'
    return f'torch.amp.{function}(..., device_type="{device}")'


_Use = tuple[ast.Name | ast.Attribute, str]


def _fix(source: Source, node: ast.Name | ast.Attribute, found: list[_Use]) -> Fix | None:
    """Of an imported name, the import and all uses of all names in it change at once.

    None where the file asks whether something is of the old class, which objects of the new one are not.
    """
    if any(_is_tested(source, other) for other, _ in uses(source, _NAMES) if not called(source, other)):
        return None
    together = [(node, next(name for other, name in found if other is node))]
    if isinstance(node, ast.Name):
        together = [(other, name) for other, name in found if _same_import(source, node, other, found)]
        statement = (import_of(source, node, together[0][1]) or (None,))[0]
        module = rename_module(source, statement, "torch.amp") if statement is not None else None
        if statement is None or module is None or not _all_known(source, statement, together):
            return None
        head: tuple[Edit, ...] = (module,)
    else:
        head = rename(source, node, together[0][1], f"torch.amp.{_NAMES[together[0][1]][1]}") or ()
    edits = [_arguments(source, other, *_NAMES[name]) for other, name in together]
    if not head or any(edit is None for edit in edits):
        return None
    return Fix(title="Use torch.amp", edits=(*head, *(edit for group in edits for edit in group or ())))


def _same_import(source: Source, node: ast.Name, other: ast.Name | ast.Attribute, found: list[_Use]) -> bool:
    names = dict(found)
    mine = import_of(source, node, names[node])
    theirs = import_of(source, other, names[other]) if isinstance(other, ast.Name) else None
    return mine is not None and theirs is not None and mine[0] is theirs[0]


def _all_known(source: Source, statement: ast.ImportFrom, together: list[_Use]) -> bool:
    """Whether each name of the import is one that moves, and each of its uses is among those that are rewritten."""
    local = {alias.asname or alias.name for alias in statement.names}
    rewritten = {node for node, _ in together}
    every = {node for node in source.nodes(ast.Name) if node.id in local}
    return all(alias.name in _FUNCTIONS for alias in statement.names) and every == rewritten


def _is_tested(source: Source, node: ast.expr) -> bool:
    """``isinstance(scaler, torch.cuda.amp.GradScaler)``, ``type(x) is ...``, a base; not an annotation."""
    for above in source.ancestors(node):
        if isinstance(above, ast.Call | ast.Compare | ast.ClassDef):
            return True
        if isinstance(above, ast.stmt | ast.arg):
            return False
    return False


def _arguments(source: Source, node: ast.expr, device: str, function: str) -> list[Edit] | None:
    """The edits that add the device to a call; None where it is not a plain call."""
    call = source.parent(node)
    if not isinstance(call, ast.Call) or call.func is not node:
        decorates = isinstance(call, ast.FunctionDef) and node in call.decorator_list and function.startswith("custom")
        return [insert(*end(source, node), f'(device_type="{device}")')] if decorates else None
    if unpacks(call) or not text_of(source, call)[len(text_of(source, node)) :].startswith("("):
        return None
    keyword = "" if function in ("autocast", "GradScaler") else "device_type="
    if (keyword and call.args) or any(_parenthesised(source, arg) for arg in call.args[1:]):
        return None
    names = _POSITIONAL.get(function, ("",) * len(call.args))
    named = [f"{name}=" if name else "" for name, _ in zip(names, call.args, strict=False)]
    comma = ", " if call.args or call.keywords else ""
    line, column = end(source, node)
    first = insert(line, column + 1, f'{keyword}"{device}"{comma}{"".join(named[:1])}')
    return [
        first,
        *(insert(*start(source, arg), name) for arg, name in zip(call.args[1:], named[1:], strict=True) if name),
    ]


def _parenthesised(source: Source, arg: ast.expr) -> bool:
    line, column = start(source, arg)
    return source.text.split("\n")[line - 1][: column - 1].rstrip().endswith("(")
