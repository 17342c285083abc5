"""What Python's own functions return."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from togi.lint.source.join import element_of, join_all
from togi.lint.source.value import UNKNOWN, Kind, Value
from togi.lint.source.words import words

if TYPE_CHECKING:
    from togi.lint.source.calls import Calls

_NUMBERS = words(
    """float int bool complex len isinstance issubclass hasattr callable any all id hash ord round divmod"""
)
_STRINGS = words("""str repr format chr input hex bin ascii""")
_SAME = words("""iter reversed sorted list tuple set frozenset""")


def builtin_call(run: Calls, name: str, node: ast.Call, values: list[Value]) -> Value | None:
    """The value of ``name(...)``; None where it is not known."""
    first = values[0] if values else UNKNOWN
    if name in ("abs", "round") and first.kind is Kind.TENSOR:
        return first.but(call=None)
    if name in _NUMBERS:
        return Value(Kind.NUMBER)
    if name in _STRINGS:
        return Value(Kind.STRING)
    if name == "print":
        return Value(Kind.NONE)
    if name in _SAME:
        return _same(run, first, node, name)
    if name == "range":
        return Value(Kind.LIST, element=Value(Kind.NUMBER))
    if name == "enumerate":
        return Value(Kind.LIST, element=Value(Kind.TUPLE, items=(Value(Kind.NUMBER), run.element(first, None))))
    if name == "zip":
        return Value(Kind.LIST, element=Value(Kind.TUPLE, items=tuple(run.element(value, None) for value in values)))
    if name == "next":
        return run.element(first, None)
    if name == "sum":
        return _sum(run, first)
    if name in ("max", "min"):
        return join_all(values) if len(values) > 1 else run.element(first, None)
    if name == "abs":
        return first
    if name == "super":
        return run.env.get("self", UNKNOWN).but(definition=None) if "self" in run.env else UNKNOWN
    if name == "getattr" and len(node.args) >= 2:
        return UNKNOWN
    if name == "dict":
        return Value(
            Kind.DICT, element=join_all([run.values[k.value] for k in node.keywords]) if node.keywords else None
        )
    return None


def _same(run: Calls, first: Value, node: ast.Call, name: str) -> Value:
    if not node.args:
        return Value(Kind.LIST)
    if first.kind in (Kind.DATALOADER, Kind.LIST):
        return first
    if first.kind is Kind.TUPLE and name != "set":
        return first if name in ("list", "tuple") else Value(Kind.LIST, element=element_of(first))
    element = run.element(first, None)
    return Value(Kind.LIST, element=element if element.kind is not Kind.UNKNOWN else None)


def _sum(run: Calls, first: Value) -> Value:
    element = run.element(first, None)
    if element.kind is Kind.TENSOR:
        return element.but(call=None)
    return Value(Kind.NUMBER) if element.kind is Kind.NUMBER else UNKNOWN
