"""The fingerprint of what a function's result depends on besides the tensors that it is given, as a hashable value.

Variables of the function, of functions in it and of Python functions that it names, plain values, tensors, and
attributes one level deep; of a module those of all modules in it, and their hooks.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.user_code import names_in
from togi.torch_internals.modules import forward_hooks, forward_pre_hooks

_DEPTH = 3
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
"""Known by their values: each time that a tensor is asked for its device or shape it makes another object."""


def fingerprint(value: Any) -> tuple[Any, ...]:
    """The fingerprint of a function, or of an argument that is not a tensor. Hashable; equal while nothing followed has
    changed."""
    return tuple(_of(value, _DEPTH, set()))


def _of(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    if isinstance(value, _PLAIN):
        yield (type(value), repr(value) if isinstance(value, float | complex) else value)  # 0.0 == -0.0, NaN != NaN
        return
    yield (type(value), getattr(value, "__code__", None) or id(value))
    if isinstance(value, Tensor):
        yield (
            value.dtype,
            value.shape,
            value.requires_grad,
            value.data_ptr() if str(value.layout) == "torch.strided" else 0,
        )
        return
    if id(value) in seen or depth == 0 or isinstance(value, types.ModuleType | type):
        return
    seen.add(id(value))
    for inner in _inside(value):
        yield from _of(inner, depth - 1, seen)


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, types.FunctionType):
        yield from _variables(value)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
        for module in value.modules():
            yield from _plain_attributes(module)
            yield vars(module).get("forward")
            yield from (*forward_pre_hooks(module).values(), *forward_hooks(module).values())
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        yield from (value.func, list(value.args), value.keywords)
    else:
        yield from _plain_attributes(value)


def _plain_attributes(value: Any) -> Iterator[Any]:
    for attribute in getattr(value, "__dict__", {}).values():
        if isinstance(attribute, (*_PLAIN, Tensor)):
            yield attribute


def _variables(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            yield None
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in names_in(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
