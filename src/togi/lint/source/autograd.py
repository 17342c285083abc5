"""Decides where autograd records, by blocks, decorators, switches and callers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from itertools import chain

from togi.lint.source.definitions import CallGraph
from togi.lint.source.names import Names, is_of_python_or_torch
from togi.lint.source.syntax import arguments_of
from togi.lint.source.tree import FUNCTIONS, Scope, Tree

_OF_PROPERTIES = ("setter", "getter", "deleter")


def sets_grad(node: ast.AST, qualified: Callable[[ast.AST], str | None]) -> bool | None:
    """What the context manager, decorator or call ``node`` does to autograd: False for off, True for on, else None."""
    arguments = arguments_of(node) if isinstance(node, ast.Call) else []
    argument = arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) else None
    name = qualified(node.func if isinstance(node, ast.Call) else node) or ""
    if name == "torch.inference_mode":
        return argument is False
    if name == "torch.enable_grad":
        return True
    if name in ("torch.set_grad_enabled", "torch._C._set_grad_enabled"):
        return argument if isinstance(argument, bool) else None
    if name.rpartition(".")[2] in ("no_grad", "inference_mode") and not name.startswith(("tensorflow", "paddle")):
        return False
    return None


class Autograd:
    """The places of one file in which autograd records."""

    def __init__(self, tree: Tree, names: Names, callers: CallGraph) -> None:
        self._tree = tree
        self._names = names
        self._callers = callers
        self._functions: dict[ast.AST, bool] = {}

    def records(self, node: ast.AST) -> bool:
        child = node
        for above in self._tree.ancestors(node):
            state = self._state(above, child)
            if state is not None:
                return state
            if isinstance(above, FUNCTIONS) and isinstance(child, ast.stmt):
                return self._function(above)
            child = above
        return True

    def _state(self, above: ast.AST, child: ast.AST) -> bool | None:
        if isinstance(above, ast.With | ast.AsyncWith) and isinstance(child, ast.stmt):
            states = [self._sets(item.context_expr) for item in above.items]
            state = next((state for state in reversed(states) if state is not None), None)
            contexts = [item.context_expr for item in above.items if item.optional_vars is None]
            return state if state is not None else self._undecidable(above, contexts)
        body = getattr(above, "body", None)
        if isinstance(child, ast.stmt) and isinstance(body, list) and child in body:
            for statement in reversed(body[: body.index(child)]):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                    state = self._switch(statement.value)
                    if state is not None:
                        return state
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(child, ast.stmt):
            states = list(map(self._sets, above.decorator_list))
            state = next((state for state in states if state is not None), None)
            return state if state is not None else self._undecidable(above, above.decorator_list)
        return None

    def _undecidable(self, region: ast.AST, around: Sequence[ast.expr]) -> bool | None:
        """False under decorators and context managers that the file does not show: they may switch autograd off.

        None where they surely do not: those of PyTorch and of Python itself, and where ``region`` computes gradients.
        """
        if not any(map(self._may_switch_off, around)):
            return None
        attributes = self._tree.walk(region, ast.Attribute)
        computes = any(attribute.attr in ("backward", "manual_backward") for attribute in attributes)
        return None if computes else False

    def _may_switch_off(self, node: ast.expr) -> bool:
        scope = self._tree.scope(node)
        func = node.func if isinstance(node, ast.Call) else node
        if is_of_python_or_torch(self._names.qualified(func, scope) or ""):
            return False
        if isinstance(func, ast.Attribute) and func.attr in _OF_PROPERTIES:
            return False
        for binding in self._names.bindings(func.id, scope) if isinstance(func, ast.Name) else ():
            if isinstance(binding, ast.FunctionDef | ast.ClassDef):
                inside = self._tree.walk(binding, ast.Name, ast.Attribute, ast.Call)
                return any(self._sets(part) is False for part in inside)
        choices = self._assigned(node, scope) if isinstance(node, ast.Name) else []
        return not choices or any(map(self._may_switch_off, choices))

    def _assigned(self, name: ast.Name, scope: Scope) -> list[ast.expr]:
        """What ``name`` was given, each side of a choice: ``context = autocast() if cuda else other()``."""
        statements = [self._tree.parents.get(binding) for binding in self._names.bindings(name.id, scope)]
        values = [statement.value for statement in statements if isinstance(statement, ast.Assign)]
        if len(values) < len(statements) or name in values:
            return []
        sides = ([value.body, value.orelse] if isinstance(value, ast.IfExp) else [value] for value in values)
        return list(chain.from_iterable(sides))

    def _switch(self, call: ast.Call) -> bool | None:
        name = self._names.qualified(call.func, self._tree.scope(call)) or ""
        return self._sets(call) if name.rpartition(".")[2] in ("set_grad_enabled", "_set_grad_enabled") else None

    def _sets(self, node: ast.AST) -> bool | None:
        scope = self._tree.scope(node)
        state = sets_grad(node, lambda part: self._names.qualified(part, scope))
        name = self._names.qualified(node.func, scope) if isinstance(node, ast.Call) else None
        if state is None and name == "torch.set_grad_enabled":
            return False  # decided at run time: not for us to judge
        return state

    def _function(self, function: ast.AST) -> bool:
        """Whether some caller lets autograd record; without callers in the file it does."""
        if function not in self._functions:
            self._functions[function] = True  # for functions that call themselves
            sites = [] if isinstance(function, ast.Lambda) else self._callers.sites(function)  # type: ignore[arg-type]
            self._functions[function] = not sites or any(self.records(call) for call in sites)
        return self._functions[function]
