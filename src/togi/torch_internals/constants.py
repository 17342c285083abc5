"""What follows from constants alone, computed while ``torch.export`` traces, so that Python may read it.

Modules keep small numbers in tensors (the stride of a layer, in a buffer) and branch by what they compute from them.
The tracer gives buffers no values, and so refuses such a branch, which takes the same side in every call. Here small
buffers keep their values, as do tensors made of Python's numbers, and what is computed from values alone is computed at
once.

Behind it: that the tracer's tensors are of subclasses (``FakeTensor``, ``FunctionalTensor``), and that a module reads a
buffer from its ``__dict__`` first (torch 2.9 to 2.15). When it goes: such modules are refused, and cut into parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from togi.torch_internals.modes import FunctionObserver, without_modes, without_torch_function
from togi.torch_internals.modules import own_buffers

_SMALL = 64
"""Elements of a tensor that is held for numbers rather than weights."""
_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor)
"""Make a tensor of numbers that Python has: of a size that is fixed, say."""
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_ANSWERS = ("__index__", "__int__", "__invert__")
"""Methods of a tensor that are named like those that write to it."""


class ConstantsComputed(FunctionObserver):
    """While it is active, functions of tensors that have values compute at once."""

    def __init__(self, kept: Collection[Tensor]) -> None:
        """``kept``: the module's own. Whoever writes to one ends the trace with a RuntimeError."""
        super().__init__()
        self._kept = {tensor.untyped_storage().data_ptr() for tensor in kept}

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        values = list(_leaves((args, kwargs)))
        tensors = [value for value in values if isinstance(value, Tensor)]
        symbols = any(isinstance(value, _SYMBOLS) for value in values)
        of_values = all(map(_has_values, tensors)) if tensors else function in _OF_NUMBERS
        constant = of_values and not symbols
        target = _target(function, args, kwargs)
        if _has_values(target) and (not constant or target.untyped_storage().data_ptr() in self._kept):
            raise RuntimeError("a tensor that holds numbers for Python is written to while it is traced")
        if constant:
            with without_torch_function(), without_modes():
                before = torch.random.get_rng_state()
                result = function(*args, **kwargs)
                if torch.equal(before, torch.random.get_rng_state()):
                    return result
                torch.random.set_rng_state(before)
        named = {name: _with_numbers(value) for name, value in kwargs.items()}
        return function(*_with_numbers(args), **named)


@contextmanager
def small_tensors_kept(module: nn.Module, but: Collection[str] = ()) -> Iterator[list[Tensor]]:
    """Inside, small buffers are plain attributes, which the tracer leaves their values. Yields all tensors of numbers.
    ``but``: names of buffers that calls change."""
    kept, undo = list[Tensor](), []
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            continue
        buffers = own_buffers(part)
        small = {
            name: buffer
            for name, buffer in buffers.items()
            if buffer is not None and _is_small(buffer) and (f"{path}.{name}" if path else name) not in but
        }
        kept += [*small.values(), *(value for value in vars(part).values() if _has_values(value))]
        if small:
            undo.append((part, dict(buffers), small))
            for name in small:
                del buffers[name]
            vars(part).update(small)
    try:
        yield kept
    finally:
        for part, before, small in undo:
            for name in small:
                vars(part).pop(name, None)
            own_buffers(part).clear()
            own_buffers(part).update(before)


def _is_small(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta" and tensor.numel() <= _SMALL


def _has_values(value: Any) -> bool:
    """A plain tensor of a few numbers: those of a tracer are of subclasses."""
    return type(value) in (Tensor, nn.Parameter) and _is_small(value)


def _target(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The value that is written to, if any."""
    name = getattr(function, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__set__")
    in_place = in_place or (name.startswith("__i") and name not in _ANSWERS)
    return args[0] if in_place and args else kwargs.get("out")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    elif isinstance(value, slice):
        yield from _leaves((value.start, value.stop, value.step))
    else:
        yield value


def _with_numbers(value: Any) -> Any:
    """Sizes and places that are tensors with values as the numbers that they are, among others that are numbers."""
    if isinstance(value, slice):
        return slice(*map(_number, (value.start, value.stop, value.step)))
    if type(value) not in (tuple, list):
        return value
    if any(isinstance(item, Tensor) and not _is_number(item) for item in value):
        return type(value)(item if isinstance(item, Tensor) else _with_numbers(item) for item in value)
    nested = any(isinstance(item, tuple | list | slice) for item in value)
    return type(value)(_with_numbers(item) if nested else _number(item) for item in value)


def _number(value: Any) -> Any:
    if not _is_number(value):
        return value
    with without_torch_function(), without_modes():
        return value.item()


def _is_number(value: Any) -> bool:
    return _has_values(value) and value.dim() == 0 and not value.is_floating_point() and not value.is_complex()
