"""What a test tells about the values that it tests."""

from __future__ import annotations

import ast
from collections.abc import Callable

from togi.lint.source import torch_api
from togi.lint.source.join import Environment
from togi.lint.source.value import UNKNOWN, Kind, Value

Qualified = Callable[[ast.AST], str | None]
_CLASSES = {
    "int": Kind.NUMBER,
    "float": Kind.NUMBER,
    "bool": Kind.NUMBER,
    "complex": Kind.NUMBER,
    "str": Kind.STRING,
    "list": Kind.LIST,
    "tuple": Kind.LIST,
    "set": Kind.LIST,
    "dict": Kind.DICT,
    "numpy.ndarray": Kind.NDARRAY,
    "torch.nn.Module": Kind.MODULE,
    "torch.device": Kind.DEVICE,
}


def narrow(environment: Environment, test: ast.expr, truth: bool, qualified: Qualified) -> None:
    """Change ``environment`` to what holds after ``test`` came out as ``truth``."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            narrow(environment, test.operand, not truth, qualified)
        case ast.BoolOp(op=op) if isinstance(op, ast.And) is truth:
            for one in test.values:
                narrow(environment, one, truth, qualified)
        case ast.Call():
            _by_call(environment, test, truth, qualified)
        case ast.Compare(ops=[op], comparators=[other]):
            _by_comparison(environment, test.left, op, other, truth)
        case ast.Attribute(attr="is_cuda"):
            _set(environment, key(test.value), device="cuda" if truth else "cpu")
        case ast.Name() | ast.Attribute() if truth:
            _set(environment, key(test), optional=False)


def key(node: ast.AST) -> str | None:
    """Under which name the environment keeps ``node``: ``x``, ``self.x``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _set(environment: Environment, name: str | None, **facts: object) -> None:
    value = environment.get(name) if name else None
    if name is not None and value is not None and value.kind not in (Kind.UNKNOWN, Kind.NONE):
        environment[name] = value.but(**facts)


def _by_comparison(environment: Environment, left: ast.expr, op: ast.cmpop, other: ast.expr, truth: bool) -> None:
    if isinstance(op, ast.NotEq | ast.IsNot):
        truth = not truth
    if not isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot) or not isinstance(other, ast.Constant):
        return
    name = key(left)
    if other.value is None and name is not None:
        if truth:
            environment[name] = Value(Kind.NONE)
        else:
            _set(environment, name, optional=False)
    elif isinstance(other.value, str) and isinstance(left, ast.Attribute) and left.attr == "type":
        device = left.value
        if isinstance(device, ast.Attribute) and device.attr == "device":
            _set_device(environment, device.value, other.value, truth)


def _set_device(environment: Environment, tensor: ast.expr, device: str, truth: bool) -> None:
    if truth:
        _set(environment, key(tensor), device="cpu" if device == "cpu" else "cuda")
    elif device == "cpu":
        _set(environment, key(tensor), device="cuda")


def _by_call(environment: Environment, test: ast.Call, truth: bool, qualified: Qualified) -> None:
    name = qualified(test.func)
    if not test.args or (target := key(test.args[0])) is None:
        return
    if name in ("torch.is_tensor", "torch.jit.isinstance"):
        _be(environment, target, Value(Kind.TENSOR, note="is tested to be a tensor", origin=test.args[0]), truth)
    elif name == "isinstance" and len(test.args) == 2:
        second = test.args[1]
        classes = second.elts if isinstance(second, ast.Tuple) else [second]
        _be(environment, target, _of_classes([qualified(one) or "" for one in classes], test.args[0]), truth)


def _of_classes(names: list[str], tested: ast.expr) -> Value:
    if all(name in torch_api.TENSOR_CLASSES for name in names):
        return Value(Kind.TENSOR, note="is tested to be a tensor", origin=tested)
    kinds = {_CLASSES.get(name, Kind.UNKNOWN) for name in names}
    return Value(kinds.pop()) if len(kinds) == 1 else UNKNOWN


def _be(environment: Environment, name: str, tested: Value, truth: bool) -> None:
    value = environment.get(name, UNKNOWN)
    if truth:
        if value.kind is not tested.kind or tested.kind is Kind.UNKNOWN:
            environment[name] = tested
        else:
            environment[name] = value.but(certain=True, optional=False)
    elif value.kind is tested.kind:
        environment[name] = UNKNOWN
