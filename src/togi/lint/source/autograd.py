"""Decides where autograd records: blocks, decorators, switches and callers."""

from __future__ import annotations

import ast
from collections.abc import Callable

from togi.lint.source.definitions import Callers
from togi.lint.source.names import Names
from togi.lint.source.tree import FUNCTIONS, Tree

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
            return next((state for state in reversed(states) if state is not None), None)
        body = getattr(above, "body", None)
        if isinstance(child, ast.stmt) and isinstance(body, list) and child in body:
            for statement in reversed(body[: body.index(child)]):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                    state = self._switch(statement.value)
                    if state is not None:
                        return state
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(child, ast.stmt):
            states = [self._sets(one) for one in above.decorator_list]
            return next((state for state in states if state is not None), None)
        return None

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
