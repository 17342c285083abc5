"""Who calls whom within one file."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property

from togi.lint.source.classes import Classes
from togi.lint.source.names import Names
from togi.lint.source.tree import Function, Tree

Named = ast.FunctionDef | ast.AsyncFunctionDef


class Callers:
    """The call graph of one file: plain functions by name, methods through ``self.NAME(...)`` and ``super().NAME``."""

    def __init__(self, tree: Tree, names: Names, classes: Classes) -> None:
        self._tree = tree
        self._names = names
        self._classes = classes
        self._sites: dict[ast.AST, list[ast.Call]] = {}

    @cached_property
    def _by_name(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self._tree.nodes(ast.Call):
            assert isinstance(call, ast.Call)
            if isinstance(call.func, ast.Name):
                found[call.func.id].append(call)
            elif isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name | ast.Call):
                found[call.func.attr].append(call)
        return found

    def sites(self, function: Function) -> list[ast.Call]:
        """Calls of ``function`` in this file. None for lambdas."""
        if isinstance(function, ast.Lambda):
            return []
        if function not in self._sites:
            owner = self._tree.class_of(function)
            candidates = self._by_name.get(function.name, [])
            keep = self._of_method if owner is not None else self._of_function
            self._sites[function] = [call for call in candidates if keep(call, function, owner)]
        return self._sites[function]

    def _of_function(self, call: ast.Call, function: Named, owner: ast.ClassDef | None) -> bool:
        if not isinstance(call.func, ast.Name):
            return False
        holder = self._names.holder(function.name, self._tree.scope(call))
        return holder is not None and function in holder.bindings[function.name]

    def _of_method(self, call: ast.Call, function: Named, owner: ast.ClassDef | None) -> bool:
        if not isinstance(call.func, ast.Attribute) or owner is None:
            return False
        caller = self._tree.function(call)
        while isinstance(caller, ast.Lambda) or (caller is not None and self._tree.class_of(caller) is None):
            caller = self._tree.function(caller)
        at = self._tree.class_of(caller) if caller is not None else None
        base = call.func.value
        if isinstance(base, ast.Name) and base.id not in ("self", "cls"):
            return base.id == owner.name
        if at is None or not (isinstance(base, ast.Name) or _is_super(base)):
            return False
        return at is owner or owner in self._classes.lineage(at) or at in self._classes.lineage(owner)


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def argument(call: ast.Call, function: Named, name: str, *, method: bool) -> ast.expr | None:
    """The expression that ``call`` passes for the parameter ``name``; None where it passes none that can be seen."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    positional = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if name not in positional:
        return None
    at = positional.index(name) - (1 if method else 0)
    before = call.args[: at + 1]
    if at < 0 or len(before) <= at or any(isinstance(one, ast.Starred) for one in before):
        return None
    return before[at]
