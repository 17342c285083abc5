"""Watches one forward pass: every ATen operation below autograd, by the layer that ran it.

``DispatchObserver`` sees operations after composite functions have come apart, so an attention that torch fuses is one
operation and one written by hand is several. Functions are watched in a second pass: ``FunctionObserver`` switches the
fast paths of ``nn.MultiheadAttention`` off, and would change what the first pass is to see.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakTensorKeyDictionary

from togi.core.user_code import user_frames
from togi.lint.module.forward_pass import AtenCall, AtenTensor, ForwardPass, FunctionCall, Line
from togi.subject.behaviour import seed_all
from togi.subject.inputs import Inputs
from togi.subject.nested import tensors_in
from togi.torch_internals.modes import DispatchObserver, FunctionObserver
from togi.torch_internals.modules import ModuleTracker
from togi.torch_internals.operators import OpOverload, bound_arguments, schema_of, written_arguments
from togi.torch_internals.tensors import operands

_NO_WORK = frozenset(
    {"_unsafe_view", "_reshape_alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty"}
)
"""Operations that move nothing although their schema does not say so."""


def observe(module: nn.Module, sample: Inputs, *, seed: int = 0) -> ForwardPass:
    """Run ``module`` on ``sample`` twice under ``no_grad`` and record it. The sample stays as it was.

    Never raises for what the module does under watch: ``error`` then says why there are no calls.
    """
    tracker, again = (ModuleTracker(module, name_outsiders=False) for _ in range(2))
    watched, functions = _Operations(tracker, [*module.parameters(), *module.buffers()]), _DropoutsAndAttention(again)
    try:
        output = _run(module, sample, watched, tracker, seed)
        _run(module, sample, functions, again, seed)
    except Exception as error:  # foreign code: modules that the modes of torch do not get along with
        first = next(iter(str(error).splitlines()), "")
        return ForwardPass(error=f"{type(error).__name__}: {first}")
    return ForwardPass(
        calls=tuple(watched.calls),
        functions=tuple(functions.calls),
        runs=dict(tracker.runs),
        outputs=frozenset(watched.number(tensor) for tensor in tensors_in(output)),
    )


def _run(module: nn.Module, sample: Inputs, mode: Any, tracker: ModuleTracker, seed: int) -> Any:
    inputs = sample.clone()
    seed_all(seed)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), tracker.following(), mode:
        return module(*inputs.args, **inputs.kwargs)


class _Operations(DispatchObserver):
    def __init__(self, tracker: ModuleTracker, constants: Sequence[Tensor]) -> None:
        super().__init__()
        self.tracker = tracker
        self.calls: list[AtenCall] = []
        self._numbers = WeakTensorKeyDictionary()
        self._next = 0
        self._constant = {self.number(tensor) for tensor in constants}

    def number(self, tensor: Tensor) -> int:
        if tensor not in self._numbers:
            self._renumber(tensor)
        return int(self._numbers[tensor])

    def _renumber(self, tensor: Tensor) -> None:
        self._numbers[tensor] = self._next
        self._next += 1

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if not isinstance(operator, OpOverload):
            return operator(*args, **kwargs)
        bound = bound_arguments(operator, args, kwargs)
        described = {name: self._described(value) for name, value in bound.items()}
        result = operator(*args, **kwargs)
        self._record(operator, bound, described, result, args, kwargs)
        return result

    def _record(
        self, func: Any, bound: Mapping[str, Any], described: Mapping[str, Any], result: Any, args: Any, kwargs: Any
    ) -> None:
        written = written_arguments(func)
        for name in written:
            for tensor in operands([bound.get(name)]):
                self._renumber(tensor)
        view = not written and any(r.alias_info is not None for r in schema_of(func).returns)
        view = view or func.overloadpacket.__name__ in _NO_WORK
        results = list(operands([result]))
        tensors = list(operands(bound.values()))
        if tensors and not written and view and all(self.number(t) in self._constant for t in tensors):
            self._constant.update(self.number(t) for t in results)
        self.calls.append(
            AtenCall(
                index=len(self.calls),
                op=str(func).removeprefix("aten."),
                layer=self.tracker.innermost,
                given=described,
                outputs=tuple(self._value(tensor) for tensor in results),
                view=view,
                written=written,
                flops=_flops(func, args, kwargs, result),
                line=_line(sys._getframe(3)),
            )
        )

    def _described(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._value(value)
        if isinstance(value, list | tuple):
            return tuple(self._described(item) for item in value)
        return value if isinstance(value, int | float | str | None) else str(value)

    def _value(self, tensor: Tensor) -> AtenTensor:
        number = self.number(tensor)
        return AtenTensor(
            number=number,
            shape=tuple(int(size) for size in tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            itemsize=tensor.element_size(),
            elements=_elements(tensor),
            floating=tensor.is_floating_point() or tensor.is_complex(),
            constant=number in self._constant,
        )


class _DropoutsAndAttention(FunctionObserver):
    """Dropout and attention as Python code calls them: only there one can see that a dropout is on."""

    def __init__(self, tracker: ModuleTracker) -> None:
        super().__init__()
        self.tracker = tracker
        self.calls: list[FunctionCall] = []

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name = getattr(function, "__name__", "").rstrip("_")
        if "dropout" in name or name == "scaled_dot_product_attention":
            numbers = {k: v for k, v in _numbers(function, args, kwargs).items() if not isinstance(v, Tensor)}
            line = _line(sys._getframe(1))
            self.calls.append(FunctionCall(name=name, layer=self.tracker.innermost, numbers=numbers, line=line))
        return function(*args, **kwargs)


_BUILTIN = {"scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")}
_DROPOUT = ("input", "p", "training")


def _numbers(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name. Functions written in C have no signature to ask."""
    try:
        bound = inspect.signature(func).bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)
    except (TypeError, ValueError):
        names = _BUILTIN.get(getattr(func, "__name__", ""), _DROPOUT)
        named = dict(zip(names, args, strict=False)) | dict(kwargs)
        return {"training" if key == "train" else key: value for key, value in named.items()}


def _elements(tensor: Tensor) -> int:
    """Elements that lie in memory. Sparse and other tensors without strides: what their shape says."""
    if tensor.layout is not torch.strided:
        return tensor.numel()
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(int(size) if stride or not size else 1 for size, stride in sizes)


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int | None:
    """Source: torch.utils.flop_counter; it knows matrix products, convolutions and attention."""
    formula = flop_registry.get(func.overloadpacket)
    return int(formula(*args, **kwargs, out_val=result)) if formula is not None else None


def _line(frame: FrameType | None) -> Line | None:
    users = next(user_frames(frame), None)
    return Line(path=users.f_code.co_filename, line=users.f_lineno, function=users.f_code.co_name) if users else None
