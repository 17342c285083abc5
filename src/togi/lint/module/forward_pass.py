"""The record of one forward pass: operations with shapes, arguments and values, and who makes and uses each value.

No tensor is in it. Values are numbered: an operation that takes number 7 reads what the operation that made number 7
wrote. Writing in place makes a new number, so that "who uses this?" has one answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class AtenTensor:
    """A tensor, without its contents."""

    number: int
    shape: tuple[int, ...]
    dtype: str
    """``float32``."""
    itemsize: int
    elements: int
    """Elements in memory: of an expanded tensor fewer than its shape says."""
    floating: bool
    constant: bool = False
    """A parameter, a buffer, or a view of one."""

    @property
    def bytes(self) -> int:
        return self.elements * self.itemsize


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of Python code."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


@dataclass(frozen=True, kw_only=True)
class AtenCall:
    """One ATen operation."""

    index: int
    """Position in the pass."""
    op: str
    """``convolution.default``."""
    layer: str
    """Qualified name of the innermost module that was running; empty for the module itself."""
    given: Mapping[str, Any]
    """Arguments by schema name: values, lists of values, numbers, None."""
    outputs: tuple[AtenTensor, ...]
    view: bool
    """It only makes a new view of its argument."""
    written: frozenset[str] = frozenset()
    """Names of the arguments that it writes in place."""
    flops: int | None = None
    """Of matrix products, convolutions and attention (a multiplication and an addition count as two); None: other."""
    line: Line | None = None
    """The innermost line of code outside torch."""

    @property
    def name(self) -> str:
        """``convolution``."""
        return self.op.partition(".")[0]

    @property
    def inputs(self) -> tuple[AtenTensor, ...]:
        return tuple(_values(self.given.values()))

    def value(self, argument: str) -> AtenTensor | None:
        value = self.given.get(argument)
        return value if isinstance(value, AtenTensor) else None


def _values(items: Any) -> Iterator[AtenTensor]:
    for item in items:
        if isinstance(item, AtenTensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _values(item)


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """One call of a torch function by Python code, above the level of operations."""

    name: str
    layer: str
    numbers: Mapping[str, Any]
    """Arguments that are not tensors, by parameter name."""
    line: Line | None


@dataclass(frozen=True, kw_only=True)
class ForwardPass:
    """Everything that one forward pass did."""

    calls: tuple[AtenCall, ...] = ()
    functions: tuple[FunctionCall, ...] = ()
    """Dropout and attention functions only."""
    runs: Mapping[str, int] = field(default_factory=dict)
    """How often each named module ran."""
    outputs: frozenset[int] = frozenset()
    """Numbers of the values that the module returned."""
    error: str = ""
    """Why it could not be watched; then there are no calls."""


CONVOLUTIONS = frozenset({"convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution"})
BATCH_NORMS = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_no_update"}
)


class DataFlow:
    """The data flow of one pass."""

    def __init__(self, forward: ForwardPass) -> None:
        self.forward = forward
        self.makers: dict[int, AtenCall] = {}
        self._users: defaultdict[int, list[AtenCall]] = defaultdict(list)
        for call in forward.calls:
            for value in {value.number: value for value in call.inputs}.values():
                self._users[value.number].append(call)
            for value in call.outputs:
                self.makers.setdefault(value.number, call)

    def users(self, value: AtenTensor) -> list[AtenCall]:
        """Calls that do something with the value or a view of it, in order; views themselves are not among them."""
        return [call for call in self._reached(value) if not call.view]

    def returned(self, value: AtenTensor) -> bool:
        """Whether the value or a view of it is among what the module returned."""
        numbers = {value.number, *(view.number for call in self._reached(value) if call.view for view in call.outputs)}
        return bool(numbers & self.forward.outputs)

    def only_user(self, value: AtenTensor) -> AtenCall | None:
        """The one call that uses it, or None where there are several, none, or it is returned."""
        users = self.users(value)
        return users[0] if len(users) == 1 and not self.returned(value) else None

    def maker(self, value: AtenTensor | None) -> AtenCall | None:
        """The call that computed the value, views of it passed over; None for inputs and parameters."""
        while value is not None:
            call = self.makers.get(value.number)
            if call is None or not call.view:
                return call
            value = call.inputs[0] if call.inputs else None
        return None

    def made_by(
        self, value: AtenTensor | None, is_sought: Callable[[AtenCall], bool], through: Callable[[AtenCall], bool]
    ) -> AtenCall | None:
        """The nearest ``wanted`` call that the value comes from, over calls that may be passed ``through``."""
        visited: set[int] = set()
        waiting = [value] if value is not None else []
        while waiting:
            call = self.maker(waiting.pop(0))
            if call is None or call.index in visited:
                continue
            visited.add(call.index)
            if is_sought(call):
                return call
            if through(call):
                waiting += [item for item in call.inputs if not item.constant]
        return None

    def _reached(self, value: AtenTensor) -> Iterator[AtenCall]:
        waiting, visited = [value.number], set[int]()
        while waiting:
            for call in self._users.get(waiting.pop(0), ()):
                if call.index in visited:
                    continue
                visited.add(call.index)
                yield call
                if call.view:
                    waiting += [view.number for view in call.outputs]


def is_linear(call: AtenCall) -> bool:
    """A convolution or linear layer with weights of its own, not computed ones."""
    weight = call.value("weight") if call.name in CONVOLUTIONS else call.value("mat2") or call.value("weight")
    return call.name in {*CONVOLUTIONS, "addmm", "mm", "linear"} and weight is not None and weight.constant


def bias_of(call: AtenCall) -> AtenTensor | None:
    """The bias of a convolution or linear layer."""
    bias = call.value("self") if call.name == "addmm" else call.value("bias")
    return bias if bias is not None and bias.constant else None


def uses_batch_statistics(call: AtenCall) -> bool:
    return call.name in BATCH_NORMS and (bool(call.given.get("training")) or call.value("running_mean") is None)
