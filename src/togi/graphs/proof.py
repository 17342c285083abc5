"""Proves that padding is harmless: the real part of a padded call against the plain one, in units of eager's error."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from togi.decide.faithful import MAX_UNITS, limit_units, within
from togi.graphs.form import tensors_in
from togi.graphs.pool import GraphError
from togi.subject.inputs import Inputs
from togi.torch_internals.behind import modules_behind
from togi.torch_internals.float32 import ieee_float32, tf32_operators
from togi.verify.float64 import float64_arithmetic, nudged_inputs, widened, widened_inputs
from togi.verify.units import error_in_units

Function = Callable[..., Any]


def in_float64(fn: Function, device: str) -> Function:
    """A copy in float64 of a module, its method or a partial call of it, for ``prove``; anything else as it is."""
    try:
        copied: Function = _widened(fn, device)
        return copied
    except Exception:  # foreign code: no room, or no copy; inputs in float64 alone may do
        return fn


def _widened(fn: Any, device: str) -> Any:
    if isinstance(fn, nn.Module):
        return widened(fn, device)
    if isinstance(fn, types.MethodType) and isinstance(fn.__self__, nn.Module):
        return types.MethodType(fn.__func__, widened(fn.__self__, device))
    if isinstance(fn, functools.partial) and modules_behind(fn):
        keywords = {name: _widened(value, device) for name, value in fn.keywords.items()}
        return functools.partial(_widened(fn.func, device), *(_widened(each, device) for each in fn.args), **keywords)
    return fn


@dataclass(frozen=True, kw_only=True)
class WaysToCall:
    """Ways to compute the same, which a proof compares."""

    graph: Function
    """A padded call that is replayed, with the flags of torch that were set when it was captured."""
    unrecorded: Function
    """The same without the graph, with the flags of now."""
    plain: Function
    """The function as it is, without padding."""
    wide: Function
    """The plain function, with weights in float64 where it has some."""


def prove(compared: WaysToCall, sample: Inputs, where: str, *, what: str = "result") -> None:
    """Prove on a sample that padding and graph change nothing. Raises GraphError where something is off by more than
    rounding explains.

    The unit is plain eager's own error in IEEE float32. Where torch multiplies in TensorFloat-32, padding is proven
    without it, since its roundings would hide a fault a thousand times as large. The graph, in which it is recorded,
    may then be off by twice as much as the same padded call without a graph.

    Args:
        where: sizes and padding, for the message.
        what: they return, for the message.
    """

    def results(call: Function, inputs: Inputs = sample) -> list[Tensor]:
        return tensors_in(call(*inputs.args, **inputs.kwargs))

    def errors(call: Function) -> list[float]:
        """In units, by result."""
        found = []
        for at, (result, (eager, exact, *moved)) in enumerate(zip(results(call), rows, strict=True)):
            if result.shape != eager.shape:
                raise GraphError(f"{where}, {what} {at} is {tuple(result.shape)}, and plain {tuple(eager.shape)}")
            found.append(error_in_units(result, exact, eager, moved) if result.numel() else 0.0)
        return found

    rounds = bool(tf32_operators(str(sample.tensors()[0].device)))
    with ieee_float32():
        plain = results(compared.plain)
        nudged = [results(compared.plain, nudged_inputs(sample, seed)) for seed in (0, 1)]
        rows = list(zip(plain, _truth(compared.wide, sample, plain), *nudged, strict=True))
        padded = errors(compared.unrecorded if rounds else compared.graph)
    for at, units in enumerate(padded):
        if not within(units):
            raise GraphError(
                f"padding changes {what} {at}: {where} it is {units:,.1f} times plain eager's own error off (limit "
                f"{MAX_UNITS:g}). Give the function a mask, another pad, or a result without what is padded"
            )
    if not rounds:
        return
    as_it_is = zip(errors(compared.graph), errors(compared.unrecorded), strict=True)
    for at, (units, own) in enumerate(as_it_is):
        if not within(units, limit_units(exact=True, tf32_units=own)):
            raise GraphError(
                f"the graph changes {what} {at}: {where} it is {units:,.1f} times plain eager's own error in IEEE "
                f"float32 off, and the same call without the graph {own:,.1f} times. Call the function as it is"
            )


def _truth(wide: Callable[..., Any], sample: Inputs, plain: Sequence[Tensor]) -> Sequence[Tensor]:
    """Compute the results in float64; plain eager's own if that cannot be."""
    try:
        with torch.compiler.set_stance("force_eager"), float64_arithmetic():
            wide_inputs = widened_inputs(sample, str(plain[0].device))
            truth = tensors_in(wide(*wide_inputs.args, **wide_inputs.kwargs))
    except Exception:  # foreign code: a function may insist on its own dtype
        return plain
    alike = [t.shape for t in truth] == [t.shape for t in plain]
    return truth if alike else plain
