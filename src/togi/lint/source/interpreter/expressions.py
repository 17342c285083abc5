"""Evaluates expressions other than calls: names, attributes, operators, displays, comprehensions."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from togi.lint.source import torch_api
from togi.lint.source.hints import guessed, named
from togi.lint.source.interpreter.modules import module_attribute
from togi.lint.source.interpreter.state import Evaluators, ScopeState, key, narrow
from togi.lint.source.interpreter.tensors import tensor_attribute, tensor_comparison, tensor_operation
from togi.lint.source.tree import FORMATTED, FUNCTIONS
from togi.lint.source.value import (
    ARRAY,
    NONE,
    NUMBER,
    STRING,
    UNKNOWN,
    Evidence,
    Value,
    ValueKind,
    device_named,
    element_of,
    iterate,
    join,
    join_all,
    list_of,
    tuple_of,
)


def read(state: ScopeState, target: ast.expr) -> Value:
    """The value of an assignment's target before the assignment."""
    return EVALUATORS[type(target)](state, target) if type(target) in EVALUATORS else UNKNOWN


# Names and attributes


def _constant(_: ScopeState, node: ast.Constant) -> Value:
    value = node.value
    if value is None:
        return NONE
    if isinstance(value, str | int | float | complex):
        return _literal(value)
    return STRING if isinstance(value, bytes) else UNKNOWN


@functools.lru_cache(maxsize=4096, typed=True)
def _literal(value: str | int | float | complex) -> Value:
    if not isinstance(value, str):
        return Value(ValueKind.NUMBER, constant=value)
    return Value(ValueKind.STRING, constant=value, device=device_named(value))


def _name(state: ScopeState, node: ast.Name) -> Value:
    value = state.env.get(node.id) or state.flow.settled(node, state.scope)
    if value is not None:
        return value
    holder = state.flow.names.holder(node.id, state.scope)
    if holder is None or (holder is state.scope and isinstance(holder.node, FUNCTIONS)):
        return UNKNOWN
    return state.flow.outer(holder, node.id)


def _attribute(state: ScopeState, node: ast.Attribute) -> Value:
    name = state.qualified(node)
    if name is not None:
        return named(name)
    dotted = key(node)
    if dotted is not None and dotted in state.env:
        state.evaluate(node.value)
        return state.env[dotted]
    return attribute_of(state, state.evaluate(node.value), node)


def attribute_of(state: ScopeState, base: Value, node: ast.Attribute) -> Value:
    attr = node.attr
    if base.kind is ValueKind.TENSOR:
        return tensor_attribute(base, attr, node)
    if isinstance(base.definition, ast.ClassDef) and base.kind in (ValueKind.MODULE, ValueKind.UNKNOWN):
        value = state.flow.attribute(base.definition, attr)
        if value.kind is not ValueKind.UNKNOWN or value.definition is not None:
            return value
    if base.kind is ValueKind.MODULE:
        return module_attribute(base, attr)
    if base.kind is ValueKind.NDARRAY:
        return ARRAY if attr in ("T", "real", "imag", "flat") else NUMBER
    if base.kind is ValueKind.UNKNOWN:
        if attr in ("shape", "ndim"):
            return Value(ValueKind.SHAPE if attr == "shape" else ValueKind.NUMBER)
        if attr in torch_api.TORCH_ONLY and isinstance(state.flow.tree.parents.get(node), ast.Call):
            return UNKNOWN
        return guessed(attr)
    if base.kind is ValueKind.DEVICE:
        return STRING if attr == "type" else NUMBER
    if base.kind is ValueKind.DATALOADER and attr == "dataset":
        return Value(ValueKind.DATASET)
    return UNKNOWN


def _subscript(state: ScopeState, node: ast.Subscript) -> Value:
    base, index = state.evaluate(node.value), state.evaluate(node.slice)
    if base.kind is ValueKind.TENSOR:
        if index.kind is ValueKind.STRING and base.certain:
            return UNKNOWN
        large = base.large and not isinstance(node.slice, ast.Constant)
        return replace(base, scalar=False, large=large, call=None, evidence=Evidence(node, cause=base))
    if base.kind is ValueKind.TUPLE and base.items is not None:
        return _item_of_tuple(base.items, node.slice)
    if base.kind in (ValueKind.LIST, ValueKind.TUPLE):
        return base if isinstance(node.slice, ast.Slice) else element_of(base)
    if base.kind is ValueKind.DICT:
        return base.element or UNKNOWN
    if base.kind is ValueKind.SHAPE:
        return base if isinstance(node.slice, ast.Slice) else NUMBER
    if base.kind in (ValueKind.NDARRAY, ValueKind.STRING):
        return replace(base, constant=None)
    if base.kind is ValueKind.MODULE and base.definition is None:
        return Value(ValueKind.MODULE, device=base.device)
    return UNKNOWN


def _item_of_tuple(items: tuple[Value, ...], node: ast.expr) -> Value:
    try:
        at = ast.literal_eval(node) if not isinstance(node, ast.Slice) else None
    except (ValueError, TypeError, SyntaxError):
        at = None
    if isinstance(at, int) and -len(items) <= at < len(items):
        return items[at]
    joined = join_all(items)
    return list_of(joined) if isinstance(node, ast.Slice) else joined


def _slice(state: ScopeState, node: ast.Slice) -> Value:
    for part in (node.lower, node.upper, node.step):
        if part is not None:
            state.evaluate(part)
    return UNKNOWN


# Operators


def _binary(state: ScopeState, node: ast.BinOp) -> Value:
    return operation(state, node, state.evaluate(node.left), state.evaluate(node.right))


def operation(state: ScopeState, node: ast.BinOp | ast.AugAssign, left: Value, right: Value) -> Value:
    """The result of ``node``, whose operands have the values ``left`` and ``right``."""
    kinds = {left.kind, right.kind}
    if ValueKind.TENSOR in kinds:
        return tensor_operation(state, node, left, right)
    if left.kind is ValueKind.STRING:
        return STRING if isinstance(node.op, ast.Mod | ast.Add | ast.Mult) else UNKNOWN
    if ValueKind.NDARRAY in kinds:
        return ARRAY
    if kinds == {ValueKind.NUMBER}:
        return NUMBER
    if left.kind in (ValueKind.LIST, ValueKind.TUPLE):
        if isinstance(node.op, ast.Add) and right.kind in (ValueKind.LIST, ValueKind.TUPLE):
            return _concatenation(left, right)
        return list_of(element_of(left)) if isinstance(node.op, ast.Mult) else UNKNOWN
    return UNKNOWN


def _concatenation(left: Value, right: Value) -> Value:
    if left.items is not None and right.items is not None:
        return tuple_of(*left.items, *right.items)
    return _list_of_values([element_of(value) for value in (left, right) if value.items or value.element])


def _list_of_values(values: Sequence[Value]) -> Value:
    return list_of(join_all(values) if values else None)


def _unary(state: ScopeState, node: ast.UnaryOp) -> Value:
    value = state.evaluate(node.operand)
    if isinstance(node.op, ast.Not):
        return NUMBER
    if value.kind is ValueKind.TENSOR:
        return replace(value, call=None, evidence=Evidence(node, cause=value))
    if value.kind is ValueKind.NUMBER:
        if isinstance(node.op, ast.USub) and isinstance(value.constant, complex | float | int):
            return Value(ValueKind.NUMBER, constant=-value.constant)
        return NUMBER
    return value if value.kind is ValueKind.NDARRAY else UNKNOWN


def _boolean(state: ScopeState, node: ast.BoolOp) -> Value:
    before, values = state.env, []
    state.env = dict(before)
    for operand in node.values:
        values.append(state.evaluate(operand))
        narrow(state.env, operand, isinstance(node.op, ast.And), state.qualified)
    state.env = before
    return join_all(values)


def _compare(state: ScopeState, node: ast.Compare) -> Value:
    operands = [state.evaluate(node.left), *map(state.evaluate, node.comparators)]
    if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops):
        return NUMBER
    kinds = {value.kind for value in operands}
    if (
        ValueKind.STRING in kinds
        or ValueKind.NONE in kinds
        or kinds & {ValueKind.SHAPE, ValueKind.DEVICE, ValueKind.DTYPE}
    ):
        return NUMBER
    if ValueKind.TENSOR in kinds:
        return tensor_comparison(node, operands)
    if ValueKind.NDARRAY in kinds:
        return ARRAY
    return UNKNOWN if ValueKind.UNKNOWN in kinds else NUMBER


def _conditional(state: ScopeState, node: ast.IfExp) -> Value:
    state.evaluate(node.test)
    before = state.env
    values = []
    for branch, truth in ((node.body, True), (node.orelse, False)):
        state.env = dict(before)
        narrow(state.env, node.test, truth, state.qualified)
        values.append(state.evaluate(branch))
    state.env = before
    return join(*values)


# Displays, comprehensions and the rest


def _tuple(state: ScopeState, node: ast.Tuple) -> Value:
    items = tuple(map(state.evaluate, node.elts))
    if any(isinstance(item, ast.Starred) for item in node.elts):
        return list_of(join_all(items))
    return tuple_of(*items)


def _list(state: ScopeState, node: ast.List | ast.Set) -> Value:
    return _list_of_values([state.evaluate(item) for item in node.elts])


def _dict(state: ScopeState, node: ast.Dict) -> Value:
    for key_node in node.keys:
        if key_node is not None:
            state.evaluate(key_node)
    values = [state.evaluate(item) for item in node.values]
    return Value(ValueKind.DICT, element=join_all(values) if values else None)


def _comprehension(state: ScopeState, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
    return list_of(_in_comprehension(state, node.generators, lambda: state.evaluate(node.elt)))


def _dict_comprehension(state: ScopeState, node: ast.DictComp) -> Value:
    def pair() -> Value:
        state.evaluate(node.key)
        return state.evaluate(node.value)

    return Value(ValueKind.DICT, element=_in_comprehension(state, node.generators, pair))


def _in_comprehension(state: ScopeState, generators: Sequence[ast.comprehension], body: Callable[[], Value]) -> Value:
    before = state.env
    state.env = dict(before)
    for generator in generators:
        state.assign(generator.target, iterate(state.evaluate(generator.iter)))
        for test in generator.ifs:
            state.evaluate(test)
            narrow(state.env, test, True, state.qualified)
    value = body()
    state.env = before
    return value


def _named_expression(state: ScopeState, node: ast.NamedExpr) -> Value:
    value = state.evaluate(node.value)
    state.assign(node.target, value)
    return value


def _formatted(state: ScopeState, node: Any) -> Value:
    """An f-string, or a t-string, which makes a template."""
    for part in node.values:
        if not isinstance(part, ast.Constant):
            state.evaluate(part.value)
            if part.format_spec is not None:
                _formatted(state, part.format_spec)
    return STRING if isinstance(node, ast.JoinedStr) else UNKNOWN


def _yield(state: ScopeState, node: ast.Yield | ast.YieldFrom) -> Value:
    if node.value is not None:
        value = state.evaluate(node.value)
        state.yielded.append(value if isinstance(node, ast.Yield) else element_of(value))
    return UNKNOWN


EVALUATORS: Evaluators = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: _conditional,
    ast.Tuple: _tuple,
    ast.List: _list,
    ast.Set: _list,
    ast.Dict: _dict,
    ast.Starred: lambda state, node: iterate(state.evaluate(node.value)),
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _dict_comprehension,
    ast.NamedExpr: _named_expression,
    **dict.fromkeys(FORMATTED, _formatted),
    ast.Lambda: lambda _, node: Value(ValueKind.FUNCTION, definition=node),
    ast.Await: lambda state, node: state.evaluate(node.value),
    ast.Yield: _yield,
    ast.YieldFrom: _yield,
}
