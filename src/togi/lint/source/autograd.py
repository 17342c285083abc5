"""Decides where autograd records: blocks, decorators, switches and callers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence

from togi.lint.source.definitions import Callers
from togi.lint.source.names import BUILTINS, Names
from togi.lint.source.tree import FUNCTIONS, Scope, Tree

_OF_PROPERTIES = ("setter", "getter", "deleter")
_OFF = ("torch.no_grad", "torch.inference_mode")


def sets_grad(node: ast.AST, qualified: Callable[[ast.AST], str | None]) -> bool | None:
    """What the context manager, decorator or call ``node`` does to autograd: False for off, True for on, else None."""
    call = node if isinstance(node, ast.Call) else None
    name = qualified(call.func if call else node) or ""
    if name in _OFF:
        off = _constant(call)
        return bool(off is False) if name == "torch.inference_mode" else False
    if name == "torch.enable_grad":
        return True
    if name in ("torch.set_grad_enabled", "torch._C._set_grad_enabled"):
        state = _constant(call)
        return state if isinstance(state, bool) else None
    if name.rpartition(".")[2] in ("no_grad", "inference_mode") and not name.startswith(("tensorflow", "paddle")):
        return False
    return None


def _constant(call: ast.Call | None) -> object:
    if call is None:
        return None
    first = [*call.args, *(keyword.value for keyword in call.keywords)][:1]
    return first[0].value if first and isinstance(first[0], ast.Constant) else None


class Autograd:
    """Where autograd records in one file, by structure: blocks, decorators, switches and callers."""

    def __init__(self, tree: Tree, names: Names, callers: Callers) -> None:
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
            told = next((state for state in reversed(states) if state is not None), None)
            contexts = [item.context_expr for item in above.items if item.optional_vars is None]
            return told if told is not None else self._undecidable(above, contexts)
        body = getattr(above, "body", None)
        if isinstance(child, ast.stmt) and isinstance(body, list) and child in body:
            for statement in reversed(body[: body.index(child)]):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                    state = self._switch(statement.value)
                    if state is not None:
                        return state
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(child, ast.stmt):
            states = [self._sets(one) for one in above.decorator_list]
            told = next((state for state in states if state is not None), None)
            return told if told is not None else self._undecidable(above, above.decorator_list)
        return None

    def _undecidable(self, region: ast.AST, around: Sequence[ast.expr]) -> bool | None:
        """False under decorators and context managers that the file does not show: they may switch autograd off.

        None where they surely do not: those of PyTorch and of Python itself, and where ``region`` computes gradients.
        """
        opaque = any(self._may_switch_off(one) for one in around)
        computes = (
            one for one in self._tree.walk(region, ast.Attribute) if one.attr in ("backward", "manual_backward")
        )
        return False if opaque and not any(computes) else None

    def _may_switch_off(self, node: ast.expr) -> bool:
        scope = self._tree.scope(node)
        func = node.func if isinstance(node, ast.Call) else node
        name = self._names.qualified(func, scope) or ""
        if name in BUILTINS or name.partition(".")[0] in (*sys.stdlib_module_names, "torch"):
            return False
        if isinstance(func, ast.Attribute) and func.attr in _OF_PROPERTIES:
            return False
        for binding in self._defined(func, scope):
            inside = self._tree.walk(binding, ast.Name, ast.Attribute, ast.Call)
            return any(self._sets(one) is False for one in inside)
        given = self._assigned(node, scope)
        return not given or any(self._may_switch_off(one) for one in given)

    def _defined(self, func: ast.expr, scope: Scope) -> list[ast.AST]:
        """The function or class of this file that ``func`` names."""
        holder = self._names.holder(func.id, scope) if isinstance(func, ast.Name) else None
        bindings = holder.bindings[func.id] if holder is not None and isinstance(func, ast.Name) else []
        return [one for one in bindings if isinstance(one, ast.FunctionDef | ast.ClassDef)]

    def _assigned(self, node: ast.expr, scope: Scope) -> list[ast.expr]:
        """What the name ``node`` was given, each side of a choice: ``context = autocast() if cuda else other()``."""
        holder = self._names.holder(node.id, scope) if isinstance(node, ast.Name) else None
        bindings = holder.bindings[node.id] if holder is not None and isinstance(node, ast.Name) else []
        made = [self._tree.parents.get(one) for one in bindings]
        if not all(isinstance(one, ast.Assign) and one.value is not node for one in made):
            return []
        values = [one.value for one in made if isinstance(one, ast.Assign)]
        return [side for one in values for side in ([one.body, one.orelse] if isinstance(one, ast.IfExp) else [one])]

    def _switch(self, call: ast.Call) -> bool | None:
        name = self._names.qualified(call.func, self._tree.scope(call)) or ""
        return self._sets(call) if name.rpartition(".")[2] in ("set_grad_enabled", "_set_grad_enabled") else None

    def _sets(self, node: ast.AST) -> bool | None:
        scope = self._tree.scope(node)
        state = sets_grad(node, lambda one: self._names.qualified(one, scope))
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
