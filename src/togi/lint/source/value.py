"""Abstract values: what is known of an expression without running it, and how knowledge of two paths is joined."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from togi.core.backports import StrEnum


class Kind(StrEnum):
    """What an expression evaluates to, as far as rules care."""

    TENSOR = "tensor"
    MODULE = "module"
    OPTIMIZER = "optimizer"
    DATALOADER = "dataloader"
    DATASET = "dataset"
    NDARRAY = "ndarray"
    NUMBER = "number"
    """A Python int, float, bool or complex."""
    STRING = "string"
    NONE = "None"
    DEVICE = "device"
    """A ``torch.device`` (``Value.device`` says which, where known)."""
    DTYPE = "dtype"
    SHAPE = "shape"
    """A ``torch.Size``."""
    TUPLE = "tuple"
    """A tuple whose ``items`` are known one by one."""
    LIST = "list"
    """A list, set, or iterator of ``element``."""
    DICT = "dict"
    """A mapping to ``element``."""
    CLASS = "class"
    FUNCTION = "function"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Value:
    """An abstract value. ``None`` in a fact means that it is not known."""

    kind: Kind = Kind.UNKNOWN
    device: str | None = None
    """``"cuda"`` (or another accelerator), ``"cpu"``, or None."""
    qualified: str | None = None
    """Canonical dotted name of its class, or of the class or function itself for CLASS and FUNCTION."""
    dtype: str | None = None
    """``"bool"``, ``"int64"``, ``"float64"``, ... of a tensor or array."""
    graph: bool | None = None
    """Whether autograd's graph hangs on it: False after ``detach()`` and under ``no_grad``."""
    certain: bool = True
    """False where it may be something else on another path, or where only its name tells."""
    optional: bool = False
    """It may also be None."""
    batch: bool = False
    """It came out of a DataLoader and has not been moved since."""
    large: bool = False
    """A broadcast over pairs: N x M elements out of N and M."""
    scalar: bool = False
    """A tensor known to have no dimensions (a full reduction, a loss)."""
    wrapped: bool = False
    """Of a DataLoader: code that the file does not show has taken it, and may move its batches."""
    pinned: bool | None = None
    """Of a DataLoader, and of its batches: whether they lie in pinned memory."""
    constant: Any = None
    """The literal, of numbers and strings."""
    items: tuple[Value, ...] | None = None
    element: Value | None = None
    definition: ast.AST | None = field(default=None, repr=False)
    """The class or function in this file, where it is one or an instance of one."""
    call: ast.Call | None = field(default=None, compare=False, repr=False)
    """The call that made it, as long as nothing changed it since."""
    origin: ast.AST | None = field(default=None, compare=False, repr=False)
    note: str = field(default="", compare=False, repr=False)
    cause: Value | None = field(default=None, compare=False, repr=False)

    @property
    def why(self) -> str:
        """The chain of evidence in words: "x is a parameter of forward, used as a tensor in torch.relu(x)"."""
        steps: list[str] = []
        value: Value | None = self
        while value is not None and len(steps) < 4:
            step = value._step()
            if step and step not in steps:
                steps.append(step)
            value = value.cause
        return "; ".join(steps)

    def _step(self) -> str:
        if not self.note:
            return ""
        text = excerpt(self.origin) if self.origin is not None else ""
        return f"{text} {self.note}".strip()

    @property
    def on_device(self) -> bool:
        """A tensor that may lie on an accelerator: its device is not known to be the CPU."""
        return self.kind is Kind.TENSOR and self.device != "cpu"

    @property
    def loader(self) -> ast.Call | None:
        """The call of DataLoader in this file from which it came."""
        value: Value | None = self
        while value is not None and value.kind is not Kind.DATALOADER:
            value = value.cause
        made = value.origin if value is not None and value.certain else None
        return made if isinstance(made, ast.Call) else None

    @property
    def cause_is_batch(self) -> bool:
        """Computed of what a DataLoader gave, with nothing moved on the way in sight."""
        value: Value | None = self
        while value is not None and not value.batch:
            value = value.cause
        return value is not None

    def but(self, **facts: Any) -> Value:
        known = dict(zip(_FIELDS, _facts(self), strict=True))
        return Value(**(known | facts))


_FIELDS = tuple(one.name for one in fields(Value))
_facts = attrgetter(*_FIELDS)
UNKNOWN = Value()
NONE = Value(Kind.NONE)
NUMBER = Value(Kind.NUMBER)
STRING = Value(Kind.STRING)
ARRAY = Value(Kind.NDARRAY)


@dataclass(frozen=True, slots=True)
class Hot:
    """Why a place runs often."""

    reason: str
    """ "it runs in every step of the loop over loader (line 12)"."""
    loop: ast.AST | None = None
    """The loop over batches or steps, where that is the reason."""
    function: ast.AST | None = None
    """``forward``, ``training_step``, ..., where that is the reason."""


def excerpt(node: ast.AST, limit: int = 60) -> str:
    """The node as source, on one line, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def receiver(node: ast.AST) -> str:
    """The node as source in front of ``.detach()``: in parentheses where it is an operation."""
    text = excerpt(node, 40)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"


def evidence_of(value: Value, hot: Hot | None) -> str:
    """ "x is a parameter of forward; it runs in every call of Net.forward"."""
    return "; ".join(filter(None, (value.why, hot.reason if hot is not None else "")))


Environment = dict[str, Value]
"""Values by name (``x``, ``self.x``) at one place."""


def join(one: Value, other: Value) -> Value:
    """What holds of both. A tensor met by something unknown stays a tensor that is not certain."""
    if one is other or one == other:
        return one
    if one.kind is other.kind is Kind.NONE:
        return Value(Kind.NONE)
    if one.kind is Kind.NONE:
        return other if other.optional else other.but(optional=True)
    if other.kind is Kind.NONE:
        return one if one.optional else one.but(optional=True)
    if one.kind is other.kind:
        return _same(one, other)
    if Kind.TENSOR in (one.kind, other.kind):
        tensor, rest = (one, other) if one.kind is Kind.TENSOR else (other, one)
        if rest.kind in (Kind.NUMBER, Kind.UNKNOWN):
            zero = rest.kind is Kind.NUMBER and rest.constant is not None
            return tensor.but(certain=tensor.certain and zero, call=None)
        return Value(optional=one.optional or other.optional)
    if {one.kind, other.kind} == {Kind.TUPLE, Kind.LIST}:
        return Value(Kind.LIST, element=join(element_of(one), element_of(other)))
    if {one.kind, other.kind} == {Kind.STRING, Kind.DEVICE}:
        return Value(Kind.DEVICE, device=_device(one, other))
    return UNKNOWN


def _same(one: Value, other: Value) -> Value:
    kind = one.kind
    if kind is Kind.TUPLE and one.items is not None and other.items is not None:
        if len(one.items) == len(other.items):
            return one.but(items=tuple(map(join, one.items, other.items)))
        return Value(Kind.LIST, element=join(element_of(one), element_of(other)))
    return one.but(
        device=_device(one, other),
        qualified=one.qualified if one.qualified == other.qualified else None,
        dtype=one.dtype if one.dtype == other.dtype else None,
        graph=one.graph if one.graph == other.graph else (True if True in (one.graph, other.graph) else None),
        certain=one.certain and other.certain,
        optional=one.optional or other.optional,
        batch=one.batch and other.batch,
        large=one.large or other.large,
        scalar=one.scalar and other.scalar,
        wrapped=one.wrapped or other.wrapped,
        pinned=one.pinned if one.pinned == other.pinned else None,
        constant=one.constant if one.constant == other.constant else None,
        element=_elements(one, other),
        definition=one.definition if one.definition is other.definition else None,
        call=one.call if one.call is other.call else None,
    )


def _elements(one: Value, other: Value) -> Value | None:
    if one.element is None or other.element is None:
        return one.element or other.element  # an empty list takes the type of what is put in on the other path
    return join(one.element, other.element)


def _device(one: Value, other: Value) -> str | None:
    """``cuda`` if available, else ``cpu``: what a device tensor of the first kind is. Tensors must agree."""
    if one.device == other.device:
        return one.device
    if one.kind in (Kind.STRING, Kind.DEVICE, Kind.MODULE):
        return "cuda" if "cuda" in (one.device, other.device) else None
    return None


def element_of(value: Value) -> Value:
    """What a list, tuple or mapping holds, all its items joined."""
    if value.items:
        return join_all(value.items)
    return value.element or UNKNOWN


def iterate(value: Value) -> Value:
    """What iterating over ``value`` gives, one at a time."""
    match value.kind:
        case Kind.DATALOADER if value.wrapped:
            return Value(batch=True, cause=value)
        case Kind.DATALOADER:
            return Value(
                Kind.TENSOR,
                device="cpu",
                batch=True,
                certain=False,
                graph=False,
                pinned=value.pinned,
                note="comes out of the DataLoader, in CPU memory",
                cause=value,
            )
        case Kind.TENSOR:
            return value.but(call=None, scalar=False)
        case Kind.LIST | Kind.TUPLE:
            return element_of(value)
        case Kind.NDARRAY:
            return value
        case Kind.SHAPE:
            return NUMBER
        case Kind.MODULE if value.definition is None:
            return Value(Kind.MODULE, device=value.device)
        case Kind.STRING:
            return STRING
    return UNKNOWN


def join_all(values: Sequence[Value]) -> Value:
    found = values[0] if values else UNKNOWN
    for value in values[1:]:
        found = join(found, value)
    return found


def join_environments(environments: list[Environment]) -> Environment:
    """Names bound on some paths only keep the value of those paths."""
    first, *rest = environments
    joined = dict(first)
    for environment in rest:
        for name, value in environment.items():
            known = joined.get(name)
            if known is None:
                joined[name] = value
            elif known is not value:
                joined[name] = join(known, value)
    return joined
