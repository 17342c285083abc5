"""The rule ``deprecated-amp``."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping

from togi.lint.finding import Edit, Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.compatibility import guarded, names_new
from togi.lint.source.edits import end, insert, rename, rename_module, start, text_of
from togi.lint.source.fixes import append, fix
from togi.lint.source.model import Source
from togi.lint.source.references import called, import_of, uses
from togi.lint.source.syntax import first_name, unpacks

_FUNCTIONS = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")
_MODULES = ("", ".autocast_mode", ".grad_scaler")
_NAMES = {
    f"torch.{device}.amp{module}.{function}": (device, function)
    for device in ("cuda", "cpu")
    for module in _MODULES
    for function in _FUNCTIONS
}
_POSITIONAL = {"autocast": ("enabled", "dtype", "cache_enabled"), "custom_fwd": ("fwd",), "custom_bwd": ("bwd",)}
"""Parameters by position of the old functions whose successors order them differently."""

_Uses = Mapping[ast.Name | ast.Attribute, str]
"""Places that stand for a deprecated name, with the name."""


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

    Fix safety: safe, since the new names do the same with the device given. Of an imported name, the import and all of
    its uses change together. There is no fix where others may import the name from this file, or where the file asks
    whether something is of the old class.

    Source: https://docs.pytorch.org/docs/stable/amp.html
    """

    id = "deprecated-amp"

    def check(self, source: Source) -> Iterable[Finding]:
        plain = ((node, name) for node, name in uses(source, _NAMES) if called(source, node))
        reported = {node: name for node, name in plain if not _is_chosen(source, node, name)}
        fixes = _fixes(source, reported)
        for node, name in reported.items():
            device, function = _NAMES[name]
            yield source.finding(
                self.id,
                node,
                f"torch.{device}.amp.{function} is deprecated and warns; it ties the code to one kind of device",
                f"write {_successor(device, function)}",
                fix=fixes.get(node),
            )


def _is_chosen(source: Source, node: ast.Name | ast.Attribute, name: str) -> bool:
    """Whether the file takes the old name for versions that lack the new one."""
    if guarded(source, node, names_new(source, _NAMES, (_NAMES[name][1],))):
        return True
    if isinstance(node, ast.Attribute):  # amp.autocast, where one of several imports gives amp
        bindings = source.names.bindings(first_name(node), source.scope(node))
        imports = [binding for binding in bindings if isinstance(binding, ast.alias)]
        return len(bindings) > 1 and any(guarded(source, alias) for alias in imports)
    imported = import_of(source, node, name)
    return imported is None or guarded(source, imported[0])


def _takes_device_first(function: str) -> bool:
    """The others take it as ``device_type``."""
    return function in ("autocast", "GradScaler")


def _successor(device: str, function: str) -> str:
    if _takes_device_first(function):
        return f'torch.amp.{function}("{device}", ...)'
    return f'torch.amp.{function}(..., device_type="{device}")'


def _fixes(source: Source, reported: _Uses) -> dict[ast.Name | ast.Attribute, Fix | None]:
    """Of an imported name, the import and all uses of all names in it change at once: they share one fix.

    None where the file asks whether something is of the old class, which objects of the new one are not.
    """
    if not reported or any(_is_tested(source, use) for use, _ in uses(source, _NAMES) if not called(source, use)):
        return {}
    fixes: dict[ast.Name | ast.Attribute, Fix | None] = {}
    together: dict[ast.ImportFrom, dict[ast.Name | ast.Attribute, str]] = defaultdict(dict)
    for node, name in reported.items():
        if isinstance(node, ast.Attribute):
            head = rename(source, node, name, f"torch.amp.{_NAMES[name][1]}")
            fixes[node] = _fix(source, head, {node: name})
        elif (statement := _statement(source, node, name)) is not None:
            together[statement][node] = name
    for statement, its_uses in together.items():
        fixes.update(dict.fromkeys(its_uses, _fix(source, _moved_import(source, statement, its_uses), its_uses)))
    return fixes


def _fix(source: Source, head: tuple[Edit, ...] | None, together: _Uses) -> Fix | None:
    """The edits of ``head``, which rename, and those that give each use its device."""
    device_edits = [_with_device(source, use, *_NAMES[old]) for use, old in together.items()] if head else []
    if not head or any(edits is None for edits in device_edits):
        return None
    return fix("Use torch.amp", *head, *(edit for edits in device_edits for edit in edits or ()))


def _statement(source: Source, use: ast.Name, name: str) -> ast.ImportFrom | None:
    """The import that a name comes from."""
    imported = import_of(source, use, name)
    return imported[0] if imported else None


def _moved_import(source: Source, statement: ast.ImportFrom, together: _Uses) -> tuple[Edit, ...] | None:
    """The edit of an import whose names all move, where each of their uses is among those that are rewritten."""
    local = {alias.asname or alias.name for alias in statement.names}
    every = {name for name in source.nodes(ast.Name) if name.id in local}
    if every != together.keys() or not all(alias.name in _FUNCTIONS for alias in statement.names):
        return None
    edit = rename_module(source, statement, "torch.amp")
    return (edit,) if edit else None


def _is_tested(source: Source, node: ast.expr) -> bool:
    """``isinstance(scaler, torch.cuda.amp.GradScaler)``, ``type(x) is ...``, a base; not an annotation."""
    for above in source.ancestors(node):
        if isinstance(above, ast.Call | ast.Compare | ast.ClassDef):
            return True
        if isinstance(above, ast.stmt | ast.arg):
            return False
    return False


def _with_device(source: Source, node: ast.expr, device: str, function: str) -> list[Edit] | None:
    """The edits that add the device to a call; None where it is not a plain call."""
    call = source.parent(node)
    if not isinstance(call, ast.Call) or call.func is not node:
        decorates = isinstance(call, ast.FunctionDef) and node in call.decorator_list and function.startswith("custom")
        return [append(source, node, f'(device_type="{device}")')] if decorates else None
    if unpacks(call) or not text_of(source, call)[len(text_of(source, node)) :].startswith("("):
        return None
    keyword = "" if _takes_device_first(function) else "device_type="
    if (keyword and call.args) or any(_is_parenthesised(source, arg) for arg in call.args[1:]):
        return None
    parameters = _POSITIONAL.get(function, ("",) * len(call.args))
    named = [f"{parameter}=" if parameter else "" for parameter, _ in zip(parameters, call.args, strict=False)]
    comma = ", " if call.args or call.keywords else ""
    line, column = end(source, node)
    first = insert(line, column + 1, f'{keyword}"{device}"{comma}{"".join(named[:1])}')
    later = zip(call.args[1:], named[1:], strict=True)
    return [first, *(insert(*start(source, arg), parameter) for arg, parameter in later if parameter)]


def _is_parenthesised(source: Source, arg: ast.expr) -> bool:
    line, column = start(source, arg)
    return source.lines[line - 1][: column - 1].rstrip().endswith("(")
