"""Records the operators of a call on fake tensors: shapes and aliasing are real, values are not there.

Fake tensors refuse whatever reads a value, so a recorded call takes no branch by values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from togi.graph.dependence.state import UNLIKE
from togi.torch_internals.modes import DispatchObserver, FunctionObserver
from togi.torch_internals.operators import OpOverload, bound_arguments, schema_of, written_arguments
from togi.torch_internals.tensors import (
    FakeTensor,
    FakeTensorMode,
    storage_key,
    tensors_of,
    tree_leaves,
    tree_map,
    tree_map_only,
)

_NUMBERS = (bool, int, float, complex, str, torch.SymInt, torch.SymFloat, torch.SymBool)
_FAST_PATH = "aten::_nested_tensor_from_mask_left_aligned"
"""Only asks whether a fast path may be taken, which ``_FunctionRecorder`` switches off."""


@dataclass(frozen=True, eq=False)
class RecordedTensor:
    """A tensor at one moment of the call."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    stride: tuple[Any, ...] = ()
    offset: Any = 0
    storage: int = 0
    real: Tensor | None = None
    """The tensor that the call found outside of its arguments: a parameter, a constant."""

    @property
    def form(self) -> tuple[Any, ...]:
        """Equal for tensors that are the same elements of the same memory."""
        return self.storage, self.dtype, self.shape, self.stride, self.offset


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """An operator with its arguments by name, ``RecordedTensor`` in place of tensors."""

    operator: Any
    arguments: dict[str, Any]
    results: tuple[RecordedTensor, ...]
    reads: bool = False
    """It hands a number or a bool computed from values to Python."""

    @property
    def name(self) -> str:
        """``aten.mean``, or what Python called."""
        packet = getattr(self.operator, "overloadpacket", None)
        return str(packet or getattr(self.operator, "__name__", self.operator))

    @property
    def written(self) -> list[RecordedTensor]:
        """Arguments whose memory it changes."""
        if not isinstance(self.operator, OpOverload) or torch.Tag.inplace_view in self.operator.tags:
            return []
        named = written_arguments(self.operator)
        return [v for name in named for v in tree_leaves(self.arguments.get(name)) if isinstance(v, RecordedTensor)]


@dataclass
class RecordedCall:
    """All of one call."""

    inputs: list[RecordedTensor] = field(default_factory=list)
    calls: list[OperatorCall] = field(default_factory=list)
    results: list[RecordedTensor] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)
    """What it returns besides tensors."""
    kept: list[RecordedTensor] = field(default_factory=list)
    """What is left of it in objects that outlive it."""
    elsewhere: bool = False
    """Operators ran that no function of torch had called from Python: those of TorchScript."""
    decided: int = 0
    """How many comparisons of sizes torch's own functions made."""

    @property
    def alike(self) -> bool:
        """True if in a pairing no number differs otherwise than by rows."""
        leaves = (leaf for call in self.calls for leaf in tree_leaves([call.arguments, call.results]))
        sizes = (size for leaf in leaves for size in (leaf.shape if isinstance(leaf, RecordedTensor) else [leaf]))
        return all(size is not UNLIKE for size in sizes)


class _Values:
    """Tensors by identity, each time that they may have another form."""

    def __init__(self, *, memory: bool) -> None:
        self._values: dict[int, RecordedTensor] = {}
        self._alive: list[Tensor] = []
        self._memory = memory

    def of(self, tensor: Tensor, *, anew: bool = False, real: Tensor | None = None) -> RecordedTensor:
        if anew or id(tensor) not in self._values:
            self._alive.append(tensor)  # no other tensor gets its id
            value = RecordedTensor(tuple(tensor.shape), tensor.dtype, real=real)
            if self._memory:
                place = tuple(tensor.stride()), tensor.storage_offset(), storage_key(tensor.untyped_storage())
                value = RecordedTensor(value.shape, tensor.dtype, *place, real)
            self._values[id(tensor)] = value
        return self._values[id(tensor)]

    def seen(self, leaf: Any) -> Any:
        if isinstance(leaf, slice):
            return [leaf.start, leaf.stop, leaf.step]
        if not isinstance(leaf, Tensor):
            return leaf
        return self.of(leaf, real=None if isinstance(leaf, FakeTensor) else leaf)


class _FunctionRecorder(FunctionObserver):
    """Records what Python calls of torch. While it is active, torch's encoder layers run operator by operator."""

    def __init__(self, decisions: Callable[[], int]) -> None:
        super().__init__()
        self.values, self.found, self.inside = _Values(memory=False), RecordedCall(), False
        self._decisions = decisions

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        given = tree_map(self.values.seen, {"args": args, "kwargs": kwargs})
        before, self.inside, decided = self.inside, True, self._decisions()
        try:
            results = function(*args, **kwargs)
        finally:
            self.inside = before
            self.found.decided += 0 if before else self._decisions() - decided
        values = tuple(self.values.of(tensor, anew=True) for tensor in tensors_of(results))
        self.found.calls.append(OperatorCall(function, given, values))
        return results


class Stopped(Exception):
    """The call was not followed further."""


class _OperatorRecorder(DispatchObserver):
    def __init__(self, mode: FakeTensorMode, functions: _FunctionRecorder, stop_at: int) -> None:
        super().__init__()
        self._mode, self._functions, self._stop_at = mode, functions, stop_at
        self._fakes: dict[int, tuple[Tensor, Tensor]] = {}
        self._values = _Values(memory=True)
        self.value = self._values.of
        self.found = RecordedCall()

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if len(self.found.calls) == self._stop_at:
            raise Stopped(f"it takes more than {self._stop_at:,} operators")
        self._functions.found.elsewhere |= not self._functions.inside
        args, kwargs = tree_map_only(Tensor, self.fake, (args, kwargs))
        given = self._named(operator, args, kwargs)
        fast_path = isinstance(operator, OpOverload) and schema_of(operator).name == _FAST_PATH
        results = False if fast_path else operator(*args, **kwargs)
        values = tuple(self.value(tensor, anew=True) for tensor in tensors_of(results))
        reads = any(isinstance(leaf, bool | int | float | complex) for leaf in tree_leaves(results))
        self.found.calls.append(OperatorCall(operator, given, values, reads and not fast_path))
        return results

    def _named(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        if isinstance(operator, OpOverload):
            given = bound_arguments(operator, args, kwargs)
        else:
            given = {"args": args, "kwargs": kwargs}
        return {name: tree_map(self._values.seen, argument) for name, argument in given.items()}

    def fake(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._fakes:
            fake = self._mode.from_tensor(tensor, static_shapes=True)
            self._fakes[id(tensor)] = fake, tensor
            self.value(fake, real=tensor)
        return self._fakes[id(tensor)][0]


def record(
    call: Callable[..., Any],
    tensors: Sequence[Tensor],
    mode: FakeTensorMode,
    *,
    stop_at: int = -1,
    decisions: Callable[[], int] = lambda: 0,
    kept: Callable[[], Sequence[Tensor]] = tuple,
) -> tuple[RecordedCall, RecordedCall]:
    """Record ``call(*tensors)``, whose arguments are fake tensors of ``mode``: its operators, and the functions of
    torch that Python called. Raises what the call raises.

    Args:
        stop_at: raise at that operator, for a traceback that leads there.
        decisions: how many comparisons of symbolic sizes have been made.
        kept: asked after the call for the tensors that it leaves in objects.
    """
    functions = _FunctionRecorder(decisions)
    recorder = _OperatorRecorder(mode, functions, stop_at)
    operators, called = recorder.found, functions.found
    operators.inputs += map(recorder.value, tensors)
    called.inputs += map(functions.values.of, tensors)
    try:
        with mode, functions, recorder:
            answer = call(*tensors)
    finally:
        torch.clear_autocast_cache()  # of weights without values
    results = tensors_of(answer)
    operators.numbers += [leaf for leaf in tree_leaves(answer) if isinstance(leaf, _NUMBERS)]
    operators.results += [recorder.value(recorder.fake(tensor)) for tensor in results]
    operators.kept += [recorder.value(recorder.fake(tensor)) for tensor in kept()]
    called.results += map(functions.values.seen, results)
    return operators, called
