"""The original in float64: the nearest thing to exact arithmetic that every module can be run in."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from togi.machine.limits import available_bytes
from togi.subject.inputs import Inputs
from togi.torch_internals.autograd import version_of
from togi.torch_internals.modes import FunctionObserver
from togi.torch_internals.modules import convert_tensors
from togi.verify.leaves import clone, copy_inputs, with_layout_of
from togi.verify.observe import overlap

_NARROW = frozenset({torch.float32, torch.float16, torch.bfloat16})
_CASTS = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})
_LEFT_ALONE = frozenset({Tensor.view, Tensor.view_as, torch.finfo, torch.set_default_dtype, Tensor.__deepcopy__})
"""A copy knows what was copied before by its address, which a wider tensor gives to the next one as soon as it is gone:
buffers would stand in each other's place."""
_BLOCK = 1 << 17
"""Elements moved at a time: 1 MiB in float64, which stays in a cache."""
_CLASSES = 1021
"""Equal values are moved alike: by what a table of so many steps, a prime, holds for their bits."""
_SPARE = 0.8
"""Share of the free memory that the float64 copy of the weights may take."""


def widened(module: nn.Module, device: str = "cpu") -> nn.Module:
    """A deep copy in float64 (complex128) on ``device``.

    Raises MemoryError when its weights would not fit into the memory that is free; whatever copying raises, too.
    """
    needed = 2 * sum(
        t.numel() * max(8, t.element_size()) for t in module.state_dict().values() if isinstance(t, Tensor)
    )
    free = free_bytes(device)
    if needed > _SPARE * free:
        raise MemoryError(f"its weights in float64 need {needed >> 20} MiB, {free >> 20} MiB are free on {device}")
    copied = copy.deepcopy(module)
    convert_tensors(copied, lambda t: wide(t).to(device))
    return copied


def widened_inputs(inputs: Inputs, device: str = "cpu") -> Inputs:
    return copy_inputs(
        inputs, lambda t: with_layout_of(t, wide(t).to(device)) if t.layout is torch.strided else wide(t)
    )


def wide(tensor: Tensor) -> Tensor:
    if tensor.is_quantized:
        return tensor
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def free_bytes(device: str) -> int:
    """Memory that can be allocated without swapping; of this process's limits only the machine's is known here."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = available_bytes()
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if available is None else available


@contextmanager
def float64_arithmetic() -> Iterator[None]:
    """New tensors are float64 by default, explicit casts to a narrower float go to float64 instead, and so does what is
    computed of narrower tensors alone.

    So modules that create constants in ``forward``, keep tables in plain attributes, or compute a part "in float32 for
    accuracy", run in float64 throughout.
    """
    with float64_by_default(), _Widen():
        yield


@contextmanager
def float64_by_default() -> Iterator[None]:
    """New tensors are float64 by default; casts are left alone."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Widen(FunctionObserver):
    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if function in _LEFT_ALONE:
            return function(*args, **kwargs)
        if function in _CASTS:
            return args[0].double()
        if _writes(function, kwargs):
            return function(*args, **kwargs)
        given = [*args, *kwargs.values()]
        if _mixed(given):
            return _with_wider(function, args, kwargs, tensors=True)
        result = _with_wider(function, args, kwargs, tensors=False)
        return _again(result, function, args, kwargs) if _computed_narrow(result, given) else result


def _with_wider(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, tensors: bool) -> Any:
    """``tensors``: they are widened too, and not the dtypes that are asked for alone."""
    return function(*(_wider(a, tensors) for a in args), **{k: _wider(v, tensors) for k, v in kwargs.items()})


def _again(narrow: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What was computed of narrow tensors alone (tables that no module knows as its own), computed in float64."""
    try:
        return _with_wider(function, args, kwargs, tensors=True)
    except Exception:  # foreign code: an operator for float32 alone
        return narrow


def _computed_narrow(result: Any, given: Sequence[Any]) -> bool:
    """Whether narrow numbers came of narrow tensors alone. Those that lie in the memory of what was given are looked at
    in another way, and whoever writes there means it."""
    tensors = [tensor for tensor in _tensors_of([result]) if tensor.dtype in _NARROW]
    narrow = [tensor for tensor in _tensors_of(given) if tensor.dtype in _NARROW]
    return bool(tensors and narrow) and not any(overlap(a, b) for a in tensors for b in narrow)


def _writes(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__set__") or "out" in kwargs


def _mixed(values: Sequence[Any]) -> bool:
    """Float64 tensors next to narrower ones (a constant kept as a plain attribute): most operations would raise."""
    dtypes = {tensor.dtype for tensor in _tensors_of(values)}
    return torch.float64 in dtypes and bool(dtypes & _NARROW)


def _tensors_of(values: Sequence[Any]) -> list[Tensor]:
    return [t for v in values for t in (v if isinstance(v, tuple | list) else (v,)) if isinstance(t, Tensor)]


def _wider(value: Any, mixed: bool) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _NARROW else torch.complex128 if value is torch.complex64 else value
    if mixed and isinstance(value, Tensor) and value.dtype in _NARROW:
        return value.double()
    if mixed and isinstance(value, tuple | list) and any(isinstance(item, Tensor) for item in value):
        return type(value)([_wider(item, mixed) for item in value]) if type(value) in (tuple, list) else value
    return value


def nudged(module: nn.Module, seed: int) -> nn.Module:
    """A deep copy whose floating parameters are each moved by one rounding up, down, or not at all. So are those of
    modules which it does not hold as its own, but in a list or an object."""
    copies: dict[int, Any] = {}
    nudging = copy.deepcopy(module, copies)
    own = {id(parameter): parameter for parameter in nudging.parameters()}
    held = {id(copied): copied for copied in copies.values() if isinstance(copied, nn.Parameter)}
    _nudge_all((own | held).values(), seed)
    return nudging


def with_nudged_tables(module: nn.Module, seed: int) -> Callable[..., Any]:
    """Calls of a module in which the narrow tensors that are neither its own nor computed in the call are moved by a
    rounding as well: what a function finds in its closure or in a plain attribute, and what it is given."""
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def call(*args: Any, **kwargs: Any) -> Any:
        with _NudgeTables(own, seed):
            return module(*args, **kwargs)

    return call


class _NudgeTables(FunctionObserver):
    def __init__(self, own: set[int], seed: int) -> None:
        super().__init__()
        self._known = set(own)
        """By identity: what is not moved. One that was made in the call and is gone gives its place to another of these
        alone, since a table is there before."""
        self._moved: dict[int, tuple[Tensor, int, Tensor]] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if not _writes(function, kwargs):
            args, kwargs = [self._with_moved(a) for a in args], {k: self._with_moved(v) for k, v in kwargs.items()}
        result = function(*args, **kwargs)
        self._known.update(id(tensor) for tensor in _tensors_of([result]) if id(tensor) not in self._moved)
        return result

    def _with_moved(self, value: Any) -> Any:
        if type(value) in (tuple, list) and any(isinstance(item, Tensor) for item in value):
            return type(value)([self._with_moved(item) for item in value])
        if not isinstance(value, Tensor) or value.dtype not in _NARROW or id(value) in self._known:
            return value
        if value.layout is not torch.strided or value.is_inference():
            return value
        _, version, moved = self._moved.get(id(value), (value, -1, value))
        if version == -1:
            moved = _nudge(value.detach(), self._generator, both_ways=False)
            self._moved[id(value)] = value, version_of(value), moved
        elif version != version_of(value):  # the call writes there
            return value
        return moved


def nudge_parameters(module: nn.Module, seed: int, roundings: int = 1) -> None:
    """Move each number of the module's floating parameters by so many roundings up, down, or not at all."""
    _nudge_all(module.parameters(), seed, roundings)


def _nudge_all(parameters: Iterable[nn.Parameter], seed: int, roundings: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            if parameter.is_floating_point() and parameter.element_size() > 1:
                parameter.copy_(_nudge(parameter, generator, both_ways=True, roundings=roundings))


def nudged_inputs(inputs: Inputs, seed: int, *, alike: bool = False) -> Inputs:
    """Floating inputs moved by one rounding towards zero, or not: never out of the domain of a function. ``alike``:
    equal values stay equal."""
    generator = torch.Generator().manual_seed(seed)

    def of(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() and tensor.layout is torch.strided and tensor.element_size() > 1:
            return with_layout_of(tensor, _nudge(tensor.detach(), generator, both_ways=False, alike=alike))
        return clone(tensor)

    return copy_inputs(inputs, of)


def _nudge(
    tensor: Tensor, generator: torch.Generator, *, both_ways: bool, alike: bool = False, roundings: int = 1
) -> Tensor:
    flat, high = tensor.reshape(-1), 2 if both_ways else 1
    by_class = torch.randint(-1, high, (_CLASSES,), generator=generator) if alike else None
    moved = torch.empty_like(flat)
    for start in range(0, flat.numel(), _BLOCK):
        part = flat[start : start + _BLOCK].double()
        if by_class is None:
            steps = torch.randint(-1, high, part.shape, generator=generator)
        else:
            steps = by_class[part.cpu().view(torch.int64) % _CLASSES]
        factor = steps.to(part).mul_(roundings * torch.finfo(tensor.dtype).eps).add_(1)
        moved[start : start + _BLOCK] = part * factor
    return moved.view(tensor.shape)
