"""Proves that padding is harmless: the real part of a padded call against the plain one, in units of eager's error."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from togi.decide.faithful import MAX_UNITS, within
from togi.graphs.form import tensors_in
from togi.graphs.pool import GraphError
from togi.subject.inputs import Inputs
from togi.torch_internals.behind import modules_behind
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


def prove(padded: Function, fn: Function, wide: Function, sample: Inputs, where: str, *, what: str = "result") -> None:
    """Compare ``padded`` with ``fn`` on a sample. Raises GraphError where it is off by more than rounding explains.

    Args:
        wide: ``fn``, with weights in float64 where it has some.
        where: sizes and padding, for the message.
        what: they return, for the message.
    """

    def results(call: Function, inputs: Inputs) -> list[Tensor]:
        return tensors_in(call(*inputs.args, **inputs.kwargs))

    from_graph, plain = results(padded, sample), results(fn, sample)
    nudged = [results(fn, nudged_inputs(sample, seed)) for seed in (0, 1)]
    rows = zip(from_graph, plain, _truth(wide, sample, plain), *nudged, strict=True)
    for at, (result, eager, exact, *moved) in enumerate(rows):
        if result.shape != eager.shape:
            raise GraphError(f"{where}, {what} {at} is {tuple(result.shape)}, and plain {tuple(eager.shape)}")
        units = error_in_units(result, exact, eager, moved) if result.numel() else 0.0
        if not within(units):
            raise GraphError(
                f"padding changes {what} {at}: {where} it is {units:,.1f} times plain eager's own error off (limit "
                f"{MAX_UNITS:g}). Give the function a mask, another pad, or a result without what is padded"
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
