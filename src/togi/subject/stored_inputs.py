"""Recorded calls in files: tensors as safetensors, their structure as JSON. Nothing is pickled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from togi.core.errors import SubjectError
from togi.core.records import Record
from togi.subject.inputs import Inputs
from togi.subject.structure import Structure


class _StoredCall(Record):
    args: Structure
    kwargs: Structure
    orders: tuple[tuple[int, ...], ...]
    """For each tensor its dimensions in memory, from the outermost to the innermost, as ``_order`` says."""


class _StoredCalls(Record):
    calls: tuple[_StoredCall, ...]


def write_inputs(path: Path, given: Sequence[Inputs]) -> None:
    """``path.json`` and ``path.safetensors``. Raises SubjectError where a call holds what has no tensor form."""
    from safetensors.torch import save_file

    calls = tuple(
        _StoredCall(
            args=Structure.of(tuple(call_inputs.args)),
            kwargs=Structure.of(dict(call_inputs.kwargs)),
            orders=tuple(map(_order, call_inputs.tensors())),
        )
        for call_inputs in given
    )
    for call in calls:
        opaque = [leaf.type for part in (call.args, call.kwargs) for leaf in part.leaves() if leaf.kind == "opaque"]
        if opaque:
            raise SubjectError(f"a call is given a {opaque[0]}, which has no tensor form")
    tensors = {
        f"{number}.{index}": _in_memory(tensor.detach(), order)
        for number, (call_inputs, call) in enumerate(zip(given, calls, strict=True))
        for index, (tensor, order) in enumerate(zip(call_inputs.tensors(), call.orders, strict=True))
    }
    save_file(tensors, str(path.with_suffix(".safetensors")))
    path.with_suffix(".json").write_text(_StoredCalls(calls=calls).to_json(), encoding="utf-8")


def read_inputs(path: Path) -> list[Inputs]:
    """Read what ``write_inputs`` wrote, with the dimensions of tensors in the order in memory that they had: a picture
    whose channels are innermost costs an engine a copy, and may cost the original none."""
    from safetensors.torch import load_file

    tensors = load_file(str(path.with_suffix(".safetensors")))
    calls = []
    for number, call in enumerate(_StoredCalls.from_json(path.with_suffix(".json").read_text(encoding="utf-8")).calls):
        stored = ((tensors[f"{number}.{index}"], order) for index, order in enumerate(call.orders))
        remaining = iter([tensor.permute(_back(order)) if order else tensor for tensor, order in stored])
        calls.append(Inputs(call.args.build(remaining), call.kwargs.build(remaining)))
    return calls


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Empty for its own order, and where elements share memory: such a tensor is stored as a contiguous one."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return ()
    sizes, strides = tensor.shape, tensor.stride()
    if any(size > 1 and stride == 0 for size, stride in zip(sizes, strides, strict=True)):
        return ()
    own = list(range(tensor.dim()))
    wide = iter(sorted((dim for dim in own if sizes[dim] > 1), key=lambda dim: -strides[dim]))
    order = [next(wide) if sizes[dim] > 1 else dim for dim in own]
    return () if order == own else tuple(order)


def _in_memory(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    return (tensor.permute(order) if order else tensor).clone(memory_format=torch.contiguous_format)


def _back(order: tuple[int, ...]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
