"""Abstract values: what is known of an expression without running it, and how knowledge of two paths is joined."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from togi.core.backports import StrEnum

ACCELERATORS = ("mps", "cuda")
"""As ``Value.device`` names them. What may be either counts as the first: copies to it may not be left unawaited."""


class ValueKind(StrEnum):
    """The kind of thing to which an expression evaluates, as far as rules care."""

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
class Evidence:
    """The reason to believe in a value: where it is seen, what that shows, and the value that it comes from."""

    origin: ast.AST | None = None
    note: str = ""
    """In words that follow ``origin``: "is a parameter of forward"."""
    cause: Value | None = None

    @property
    def text(self) -> str:
        if not self.note or self.origin is None:
            return self.note
        return f"{excerpt(self.origin)} {self.note}"


_NO_EVIDENCE = Evidence()
_STEPS_TOLD = 4


@dataclass(frozen=True, slots=True)
class Value:
    """An abstract value. ``None`` in a fact means that it is not known. ``dataclasses.replace`` changes facts."""

    kind: ValueKind = ValueKind.UNKNOWN
    certain: bool = True
    """False where it may be something else on another path, or where only its name tells."""
    optional: bool = False
    """It may also be None."""

    # Of tensors and arrays; modules, devices and strings that name one have a device too.
    device: str | None = None
    """``"cuda"`` (or an accelerator like it), ``"mps"``, ``"cpu"``, or None."""
    dtype: str | None = None
    """``"bool"``, ``"int64"``, ``"float64"``, ..."""
    graph: bool | None = None
    """Whether autograd's graph hangs on it: False after ``detach()`` and under ``no_grad``."""
    scalar: bool = False
    """It is known to have no dimensions (a full reduction, a loss)."""
    large: bool = False
    """A broadcast over pairs: N x M elements out of N and M."""
    batch: bool = False
    """It came out of a DataLoader and has not been moved since."""
    pinned: bool | None = None
    """Of a DataLoader, and of its batches: whether they lie in pinned memory."""
    call: ast.Call | None = field(default=None, compare=False, repr=False)
    """The call that made it, as long as nothing changed it since."""

    # Of classes, functions and instances of classes.
    qualified: str | None = None
    """Canonical dotted name of its class, or of the class or function itself for CLASS and FUNCTION."""
    definition: ast.AST | None = field(default=None, repr=False)
    """The class or function in this file, where it is one or an instance of one."""

    # Of literals and containers.
    constant: str | complex | None = None
    """The literal, of numbers and strings."""
    items: tuple[Value, ...] | None = None
    element: Value | None = None

    evidence: Evidence = field(default=_NO_EVIDENCE, compare=False, repr=False)

    @property
    def why(self) -> str:
        """The chain of evidence in words: "x is a parameter of forward, used as a tensor in torch.relu(x)"."""
        steps: list[str] = []
        for value in self.history():
            step = value.evidence.text
            if step and step not in steps:
                steps.append(step)
            if len(steps) == _STEPS_TOLD:
                break
        return "; ".join(steps)

    def history(self) -> Iterator[Value]:
        """This value, the one that it comes from, and so on."""
        value: Value | None = self
        while value is not None:
            yield value
            value = value.evidence.cause

    @property
    def on_device(self) -> bool:
        """A tensor that may lie on an accelerator: its device is not known to be the CPU."""
        return self.kind is ValueKind.TENSOR and self.device != "cpu"

    @property
    def loader(self) -> ast.Call | None:
        """The call of DataLoader in this file from which it came."""
        loader = next((value for value in self.history() if value.kind is ValueKind.DATALOADER), UNKNOWN)
        origin = loader.evidence.origin
        return origin if loader.certain and isinstance(origin, ast.Call) else None

    @property
    def cause_is_batch(self) -> bool:
        """Computed of what a DataLoader gave, with nothing moved on the way in sight."""
        return any(value.batch for value in self.history())


UNKNOWN = Value()
NONE = Value(ValueKind.NONE)
NUMBER = Value(ValueKind.NUMBER)
STRING = Value(ValueKind.STRING)
ARRAY = Value(ValueKind.NDARRAY)
UNSEEN_BATCHES = Value(ValueKind.LIST, element=Value(batch=True))
"""A DataLoader that code outside the file has taken, so that its batches may have been moved."""
PERHAPS_BATCHES = Value(element=Value(batch=True))
"""What such code returned for a DataLoader: perhaps another one, or several."""


@dataclass(frozen=True, slots=True)
class Hot:
    """The reason why a place runs often."""

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


def join(left: Value, right: Value) -> Value:
    """What holds of both. A tensor met by something unknown stays a tensor that is not certain."""
    if left is right or left == right:
        return left
    if left.kind is right.kind is ValueKind.NONE:
        return NONE
    if left.kind is ValueKind.NONE:
        return right if right.optional else replace(right, optional=True)
    if right.kind is ValueKind.NONE:
        return left if left.optional else replace(left, optional=True)
    if left.kind is right.kind:
        return _join_same_kind(left, right)
    if ValueKind.TENSOR in (left.kind, right.kind):
        tensor, met = (left, right) if left.kind is ValueKind.TENSOR else (right, left)
        if met.kind in (ValueKind.NUMBER, ValueKind.UNKNOWN):
            is_literal = met.kind is ValueKind.NUMBER and met.constant is not None
            return replace(tensor, certain=tensor.certain and is_literal, call=None)
        return Value(optional=left.optional or right.optional)
    if {left.kind, right.kind} == {ValueKind.TUPLE, ValueKind.LIST}:
        return list_of(join(element_of(left), element_of(right)))
    if {left.kind, right.kind} == {ValueKind.STRING, ValueKind.DEVICE}:
        return Value(ValueKind.DEVICE, device=_join_devices(left, right))
    return UNKNOWN


def _join_same_kind(left: Value, right: Value) -> Value:
    if left.kind is ValueKind.TUPLE and left.items is not None and right.items is not None:
        if len(left.items) == len(right.items):
            return replace(left, items=tuple(map(join, left.items, right.items)))
        return list_of(join(element_of(left), element_of(right)))
    return replace(
        left,
        certain=left.certain and right.certain,
        optional=left.optional or right.optional,
        device=_join_devices(left, right),
        dtype=left.dtype if left.dtype == right.dtype else None,
        graph=left.graph if left.graph == right.graph else (True if True in (left.graph, right.graph) else None),
        scalar=left.scalar and right.scalar,
        large=left.large or right.large,
        batch=left.batch and right.batch,
        pinned=left.pinned if left.pinned == right.pinned else None,
        call=left.call if left.call is right.call else None,
        qualified=left.qualified if left.qualified == right.qualified else None,
        definition=left.definition if left.definition is right.definition else None,
        constant=left.constant if left.constant == right.constant else None,
        element=_join_elements(left, right),
    )


def _join_elements(left: Value, right: Value) -> Value | None:
    if left.element is None or right.element is None:
        return left.element or right.element  # an empty list takes the type of what is put in on the other path
    return join(left.element, right.element)


def _join_devices(left: Value, right: Value) -> str | None:
    """``cuda`` if available, else ``cpu``: what a device of the first kind is. Tensors must agree."""
    if left.device == right.device:
        return left.device
    if left.kind in (ValueKind.STRING, ValueKind.DEVICE, ValueKind.MODULE):
        return accelerator_among((left.device, right.device))
    return None


def device_named(text: str) -> str | None:
    """The device of ``"cuda:1"`` as ``Value.device`` names it."""
    kind = text.partition(":")[0]
    if kind in ("cpu", *ACCELERATORS):
        return kind
    return "cuda" if kind in ("xpu", "npu", "hpu") else None


def accelerator_among(devices: Collection[str | None]) -> str | None:
    """The accelerator that may be meant where it may be one of these devices."""
    return next((device for device in ACCELERATORS if device in devices), None)


def list_of(element: Value | None) -> Value:
    """A list, set or iterator of ``element``; None for an empty one."""
    return Value(ValueKind.LIST, element=element)


def tuple_of(*items: Value) -> Value:
    return Value(ValueKind.TUPLE, items=items)


def element_of(value: Value) -> Value:
    """What a list, tuple or mapping holds, all its items joined."""
    if value.items:
        return join_all(value.items)
    return value.element or UNKNOWN


def iterate(value: Value) -> Value:
    """What iterating over ``value`` gives, one at a time."""
    match value.kind:
        case ValueKind.DATALOADER:
            return Value(
                ValueKind.TENSOR,
                certain=False,
                device="cpu",
                graph=False,
                batch=True,
                pinned=value.pinned,
                evidence=Evidence(note="comes out of the DataLoader, in CPU memory", cause=value),
            )
        case ValueKind.TENSOR:
            return replace(value, call=None, scalar=False)
        case ValueKind.LIST | ValueKind.TUPLE:
            return element_of(value)
        case ValueKind.NDARRAY:
            return value
        case ValueKind.SHAPE:
            return NUMBER
        case ValueKind.MODULE if value.definition is None:
            return Value(ValueKind.MODULE, device=value.device)
        case ValueKind.STRING:
            return STRING
    return UNKNOWN


def gives_batches(value: Value) -> bool:
    """Whether iterating over ``value`` gives batches of a DataLoader, alone or next to a counter."""
    if value.kind is ValueKind.DATALOADER:
        return True
    element = value.element
    if element is None or value.kind is not ValueKind.LIST:
        return False
    return element.batch or any(item.batch for item in element.items or ())


def join_all(values: Sequence[Value]) -> Value:
    return functools.reduce(join, values) if values else UNKNOWN


def join_environments(environments: list[Environment]) -> Environment:
    """Names bound on some paths only keep the value of those paths."""
    first, *further = environments
    joined = dict(first)
    for environment in further:
        for name, value in environment.items():
            before = joined.get(name)
            if before is None:
                joined[name] = value
            elif before is not value:
                joined[name] = join(before, value)
    return joined
