"""Values of expressions: each scope is interpreted abstractly, once, when a rule first asks for something in it.

Interpretation follows the statements in order: assignments rebind, branches are joined, loops run until nothing changes
(at most three times). Functions of the file are entered where they are called: what they return is the join of their
``return`` statements, what they are passed is the join over their calls.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeVar

from togi.lint.source.budget import TooManyStepsError
from togi.lint.source.definitions import CallGraph, Classes
from togi.lint.source.hints import guessed, named
from togi.lint.source.names import BUILTINS, Names
from togi.lint.source.tree import FUNCTIONS, Function, Scope, Tree
from togi.lint.source.value import UNKNOWN, Value, ValueKind, join

K = TypeVar("K")
_DEPTH = 12
"""How many scopes may wait for each other. Chains of calls beyond this are left unknown."""
_GIVEN_TENSORS = frozenset(
    """forward training_step validation_step test_step predict_step compute_loss loss criterion forward_features
    forward_head encode decode sample""".split()
)


class Flow:
    """Values of one file."""

    def __init__(
        self, tree: Tree, names: Names, classes: Classes, callers: CallGraph, interpreter: Callable[[Flow, Scope], None]
    ) -> None:
        self.tree = tree
        self.names = names
        self.classes = classes
        self.callers = callers
        self.values: dict[ast.AST, Value] = {}
        self.bound: dict[tuple[Scope, str], Value] = {}
        self.attributes: dict[tuple[ast.ClassDef, str], Value] = {}
        self.returns: dict[Scope, Value] = {}
        self._state: dict[Scope, str] = {}
        self._interpreter = interpreter
        self._depth = 0

    def value(self, node: ast.AST) -> Value:
        """The value of the expression ``node``."""
        value = self.values.get(node)
        if value is not None:
            return value
        scope = self.tree.scope(node)
        if not isinstance(node, ast.Name) or not (node.id in scope.bindings or node.id in scope.foreign):
            settled = self.settled(node, scope)
            if settled is not None:
                return settled
        self.ensure(scope)
        return self.values.get(node, UNKNOWN)

    def settled(self, node: ast.AST, scope: Scope) -> Value | None:
        """The value of a name that ``scope`` leaves as it is, where nothing need be interpreted to know it: of an
        import, a builtin, or a function or class that the file defines outside ``scope``."""
        name = self.names.qualified(node, scope)
        if not isinstance(node, ast.Name):
            return named(name) if name is not None else None
        holder = self.names.holder(node.id, scope)
        if holder is None:
            return Value(ValueKind.FUNCTION, qualified=node.id) if node.id in BUILTINS else guessed(node.id)
        if name is not None:
            return named(name)
        return self._defined(holder, node.id) if holder is not scope else None

    def _defined(self, holder: Scope, name: str) -> Value | None:
        for node in holder.bindings[name]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return Value(ValueKind.FUNCTION, definition=node)
            if isinstance(node, ast.ClassDef):
                return Value(ValueKind.CLASS, definition=node)
        return None

    def ensure(self, scope: Scope) -> None:
        """Interpret ``scope``, its callers first (they know what it is passed)."""
        state = self._state.get(scope)
        if state in ("running", "done") or self._depth > _DEPTH:
            return
        self._depth += 1
        try:
            if state is None:
                self._state[scope] = "waiting"
                self._ensure_callers(scope)
            if self._state[scope] == "waiting":
                self._state[scope] = "running"
                self._interpret(scope)
                self._state[scope] = "done"
        finally:
            self._depth -= 1

    def _ensure_callers(self, scope: Scope) -> None:
        if isinstance(scope.node, FUNCTIONS):
            for call in self.callers.sites(scope.node)[:8]:
                self.ensure(self.tree.scope(call))

    def _interpret(self, scope: Scope) -> None:
        try:
            self._interpreter(self, scope)
        except (RecursionError, TooManyStepsError):  # the rest of the scope is unknown
            self.returns.setdefault(scope, UNKNOWN)

    def result(self, function: ast.AST) -> Value:
        """What calling ``function`` (of this file) returns."""
        scope = self.tree.scopes[function]
        self.ensure(scope)
        return self.returns.get(scope, UNKNOWN)

    def outer(self, holder: Scope, name: str) -> Value:
        """The value of ``name`` as seen from inside a function below ``holder``."""
        defined = self._defined(holder, name)
        if defined is not None:
            return defined
        self.ensure(holder)
        value = self.bound.get((holder, name), UNKNOWN)
        return value if value.kind is not ValueKind.UNKNOWN else guessed(name)

    def bind(self, scope: Scope, name: str, value: Value) -> None:
        _note(self.bound, (scope, name), value)

    def keep(self, owner: ast.ClassDef, name: str, value: Value) -> None:
        """Note that ``self.NAME`` of ``owner`` was given ``value``."""
        _note(self.attributes, (owner, name), value)

    def attribute(self, owner: ast.ClassDef, name: str) -> Value:
        """``self.NAME`` in methods of ``owner``: a method, or the join of what is assigned to it anywhere."""
        for base in self.classes.lineage(owner):
            value = self._own_attribute(base, name)
            if value is not None:
                return value
        method = self.classes.method(owner, name)
        if method is None:
            return UNKNOWN
        if any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in method.decorator_list):
            return self.result(method)
        return Value(ValueKind.FUNCTION, definition=method)

    def _own_attribute(self, owner: ast.ClassDef, name: str) -> Value | None:
        init = self.classes.methods(owner).get("__init__")
        if init is not None:
            self.ensure(self.tree.scopes[init])
        for function in self.classes.assigned.get(owner, {}).get(name, ()):
            self.ensure(self.tree.scopes[function])
        value = self.attributes.get((owner, name))
        scope = self.tree.scopes[owner]
        if value is None and name in scope.bindings and name not in self.classes.methods(owner):
            self.ensure(scope)
            value = self.bound.get((scope, name))
        return value

    def instance(self, owner: ast.ClassDef) -> Value:
        """An instance of a class of this file (``self``)."""
        kind = ValueKind.MODULE if self.classes.is_module(owner) else ValueKind.UNKNOWN
        return Value(kind, qualified=owner.name, definition=owner)

    def is_submodule(self, scope: Scope, name: str) -> bool:
        """``self.NAME`` in the method ``scope`` is one of PyTorch's own modules."""
        owner = self.tree.class_of(scope.node)
        if owner is None:
            return False
        value = self.attribute(owner, name)
        return value.kind is ValueKind.MODULE and (value.qualified or "").startswith("torch.nn.")

    def takes_tensors(self, function: Function) -> bool:
        """Whether parameters of ``function`` that look like tensors are: methods of modules, functions of autograd."""
        owner = self.tree.class_of(function)
        if owner is None or isinstance(function, ast.Lambda):
            return False
        if self.classes.is_autograd_function(owner):
            return True
        return self.classes.is_module(owner) and function.name in _GIVEN_TENSORS


def _note(values: dict[K, Value], key: K, value: Value) -> None:
    before = values.get(key)
    values[key] = value if before is None else join(before, value)
