"""The state of an interpretation: the environment, what tests tell about it, and assignments to it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from togi.lint.source import torch_api
from togi.lint.source.budget import INTERPRETED
from togi.lint.source.flow import Flow
from togi.lint.source.tree import Scope
from togi.lint.source.value import (
    ACCELERATORS,
    NONE,
    UNKNOWN,
    Environment,
    Evidence,
    Value,
    ValueKind,
    device_named,
    iterate,
    join,
    list_of,
)

Qualified = Callable[[ast.AST], str | None]
Evaluators = Mapping[type[ast.expr], Callable[["ScopeState", Any], Value]]
_CLASSES = {
    "int": ValueKind.NUMBER,
    "float": ValueKind.NUMBER,
    "bool": ValueKind.NUMBER,
    "complex": ValueKind.NUMBER,
    "str": ValueKind.STRING,
    "list": ValueKind.LIST,
    "tuple": ValueKind.LIST,
    "set": ValueKind.LIST,
    "dict": ValueKind.DICT,
    "numpy.ndarray": ValueKind.NDARRAY,
    "torch.nn.Module": ValueKind.MODULE,
    "torch.device": ValueKind.DEVICE,
}


class ScopeState:
    """The knowledge at one place of a scope while it is interpreted."""

    def __init__(self, flow: Flow, scope: Scope, evaluators: Evaluators) -> None:
        self.flow = flow
        self.scope = scope
        self.values = flow.values
        self.env: Environment = {}
        self.alive = True
        """Whether control flow arrives here; where not, ``env`` means nothing."""
        self.grad = True
        """Whether autograd records here."""
        self.breaks: list[Environment | None] = []
        self.continues: list[Environment | None] = []
        self.returned: list[Value] = []
        self.yielded: list[Value] = []
        self._evaluators = evaluators
        self._dotted: set[str] = set()
        """Names of which ``env`` keeps attributes."""

    def qualified(self, node: ast.AST) -> str | None:
        return self.flow.names.qualified(node, self.scope)

    def evaluate(self, node: ast.expr) -> Value:
        """The value of ``node`` here and now."""
        self.flow.tree.interpreting.take(INTERPRETED)
        evaluator = self._evaluators.get(type(node))
        value = evaluator(self, node) if evaluator is not None else UNKNOWN
        self.values[node] = value
        return value

    def set_recording(self, on: bool | None) -> None:
        """Autograd is switched on or off here; None leaves it as it is."""
        self.grad = self.grad if on is None else on

    def recorded(self, operands: Sequence[Value]) -> bool | None:
        """Whether autograd's graph hangs on a result computed from ``operands``."""
        if not self.grad:
            return False
        graphs = [value.graph for value in operands]
        if True in graphs:
            return True
        return False if graphs and all(graph is False for graph in graphs) else None

    def assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name():
                self.assign_name(target.id, value)
            case ast.Attribute():
                self._assign_attribute(target, value)
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value)
            case ast.Starred():
                self.assign(target.value, list_of(value))
            case ast.Subscript():
                self._assign_item(target, value)

    def assign_name(self, name: str, value: Value) -> None:
        if name in self.scope.foreign:
            holder = self.flow.names.holder(name, self.scope)
            if holder is not None:
                self.flow.bind(holder, name, value)
        self.env[name] = value
        if name in self._dotted:
            for attribute in [variable for variable in self.env if variable.startswith(name + ".")]:
                del self.env[attribute]
        self.flow.bind(self.scope, name, value)

    def _assign_attribute(self, target: ast.Attribute, value: Value) -> None:
        owner = self.evaluate(target.value).definition
        name = key(target)
        if name is not None and isinstance(target.value, ast.Name):
            self.env[name] = value
            self._dotted.add(target.value.id)
        if isinstance(owner, ast.ClassDef):
            self.flow.keep(owner, target.attr, value)

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        plain = not any(isinstance(target, ast.Starred) for target in targets)
        if value.items is not None and plain and len(value.items) == len(targets):
            for target, item in zip(targets, value.items, strict=True):
                self.assign(target, item)
            return
        element = iterate(value)
        for target in targets:
            self.assign(target, element)

    def _assign_item(self, target: ast.Subscript, value: Value) -> None:
        container = self.evaluate(target.value)
        self.evaluate(target.slice)
        name = key(target.value)
        if name is not None and container.kind in (ValueKind.LIST, ValueKind.DICT):
            element = container.element
            self.env[name] = replace(container, element=value if element is None else join(element, value))


def narrow(environment: Environment, test: ast.expr, truth: bool, qualified: Qualified) -> None:
    """Change ``environment`` to what holds after ``test`` came out as ``truth``."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            narrow(environment, test.operand, not truth, qualified)
        case ast.BoolOp(op=op) if isinstance(op, ast.And) is truth:
            for part in test.values:
                narrow(environment, part, truth, qualified)
        case ast.Call():
            _by_call(environment, test, truth, qualified)
        case ast.Compare(ops=[op], comparators=[other]):
            _by_comparison(environment, test.left, op, other, truth)
        case ast.Attribute(attr="is_cuda"):
            _place(environment, test.value, "cuda" if truth else "cpu")
        case ast.Name() | ast.Attribute() if truth:
            _rule_out_none(environment, test)


def key(node: ast.AST) -> str | None:
    """The name under which the environment keeps ``node``: ``x``, ``self.x``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _place(environment: Environment, node: ast.expr, device: str) -> None:
    name = key(node)
    if name is not None and (value := environment.get(name, UNKNOWN)).kind not in (ValueKind.UNKNOWN, ValueKind.NONE):
        environment[name] = replace(value, device=device)


def _rule_out_none(environment: Environment, node: ast.expr) -> None:
    name = key(node)
    if name is not None and (value := environment.get(name, UNKNOWN)).optional and value.kind is not ValueKind.UNKNOWN:
        environment[name] = replace(value, optional=False)


def _by_comparison(environment: Environment, left: ast.expr, op: ast.cmpop, other: ast.expr, truth: bool) -> None:
    if isinstance(op, ast.NotEq | ast.IsNot):
        truth = not truth
    if not isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot) or not isinstance(other, ast.Constant):
        return
    if other.value is None and (name := key(left)) is not None:
        if truth:
            environment[name] = NONE
        else:
            _rule_out_none(environment, left)
    match left:
        case ast.Attribute(value=ast.Attribute(value=tensor, attr="device"), attr="type"):
            if other.value == "cpu":
                _place(environment, tensor, "cpu" if truth else ACCELERATORS[0])
            elif truth and isinstance(other.value, str):
                _place(environment, tensor, device_named(other.value) or ACCELERATORS[0])


def _by_call(environment: Environment, test: ast.Call, truth: bool, qualified: Qualified) -> None:
    name = qualified(test.func)
    if not test.args or (variable := key(test.args[0])) is None:
        return
    if name in ("torch.is_tensor", "torch.jit.isinstance"):
        _be(environment, variable, _tested_tensor(test.args[0]), truth)
    elif name == "isinstance" and len(test.args) == 2:
        tested = test.args[1]
        classes = tested.elts if isinstance(tested, ast.Tuple) else [tested]
        names = [qualified(node) or "" for node in classes]
        _be(environment, variable, _of_classes(names, test.args[0]), truth)


def _of_classes(names: list[str], tested: ast.expr) -> Value:
    if all(name in torch_api.TENSOR_CLASSES for name in names):
        return _tested_tensor(tested)
    kinds = {_CLASSES.get(name, ValueKind.UNKNOWN) for name in names}
    return Value(kinds.pop()) if len(kinds) == 1 else UNKNOWN


def _tested_tensor(tested: ast.expr) -> Value:
    return Value(ValueKind.TENSOR, evidence=Evidence(tested, "is tested to be a tensor"))


def _be(environment: Environment, name: str, tested: Value, truth: bool) -> None:
    value = environment.get(name, UNKNOWN)
    if truth:
        if value.kind is not tested.kind or tested.kind is ValueKind.UNKNOWN:
            environment[name] = tested
        else:
            environment[name] = replace(value, certain=True, optional=False)
    elif value.kind is tested.kind:
        environment[name] = UNKNOWN
