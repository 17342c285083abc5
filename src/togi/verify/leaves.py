"""The tensors inside inputs and outputs, wherever they are, with a path that names each.

Also looks into objects that have no tensor form (a cache class, a list with attributes): what such an object holds is
part of the answer, and is verified, although it cannot be stored. Arrays count as tensors, in the memory that they
have.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from togi.subject.compared import attributes_of, is_code, tensor_of, with_numbers
from togi.subject.inputs import Inputs
from togi.subject.leaves import is_array
from togi.subject.signature import Signature
from togi.subject.structure import Structure

_DEEPEST = 8
"""Levels of attributes followed inside an opaque object."""


def tensors_in(value: Any, path: str) -> list[tuple[str, Tensor]]:
    """``(path, tensor)`` of every tensor in a value, in order of traversal; a tensor met twice is named twice."""
    return [(at, _as_tensor(item)) for at, item in _walk(value, path, 0, set())]


def input_tensors(inputs: Inputs, signature: Signature) -> list[tuple[str, Tensor]]:
    """``(path, tensor)`` of every tensor among the arguments of a call, named as the signature names them."""
    return [named for name, value in named_arguments(inputs, signature) for named in tensors_in(value, name)]


def named_arguments(inputs: Inputs, signature: Signature) -> list[tuple[str, Any]]:
    """The arguments of a call, named as the signature names them."""
    values = [*inputs.args, *(inputs.kwargs[name] for name in sorted(inputs.kwargs))]
    names = list(signature.names) if len(signature.names) == len(values) else [f"input {i}" for i in range(len(values))]
    return list(zip(names, values, strict=True))


def copy_inputs(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The same call with every tensor, and the numbers of every array, replaced by ``change(tensor)``; all else is
    copied, arrays inside of objects too. An array stays an array of its dtype.

    An argument given twice stays one tensor given twice.
    """
    given = (inputs.args, dict(inputs.kwargs))
    memo: dict[int, Any] = {}
    for _, tensor in _walk(given, "", 0, set()):
        if isinstance(tensor, Tensor) and id(tensor) not in memo:
            memo[id(tensor)] = change(tensor)
    for _, leaf, item in Structure.of(given).walk(given):
        if leaf.kind == "opaque" and _is_changeable(item) and id(item) not in memo:
            memo[id(item)] = with_numbers(item, change(_as_tensor(item)))
    args, kwargs = copy.deepcopy(given, memo)
    return Inputs(args, kwargs)


def has_opaque(signature: Signature) -> bool:
    """An argument is an object of which nobody can make another."""
    return any(leaf.kind == "opaque" for argument in signature.arguments for leaf in argument.leaves())


def put_into(given: Inputs, values: Inputs) -> Inputs | None:
    """The call ``values`` made with the tensors and arrays of ``given``, which hold its numbers from then on. All else
    (numbers, also those of NumPy, texts, random generators) is copied from ``values``: a call may have used up what
    ``given`` holds.

    None: there is nothing to write, or it cannot be written.
    """
    held, wanted = (list(_walk((call.args, dict(call.kwargs)), "", 0, set())) for call in (given, values))
    if [at for at, _ in held] != [at for at, _ in wanted]:  # the call before may have put more there
        return None
    written = [(item, value) for (_, item), (_, value) in zip(held, wanted, strict=True) if _is_written(item)]
    if not written:
        return None
    try:
        with torch.no_grad():
            for item, value in written:
                _as_tensor(item).copy_(_as_tensor(value))
    except RuntimeError:  # an expanded input: several elements are one place in memory
        return None
    memo = {id(value): item for item, value in written}
    args, kwargs = copy.deepcopy((values.args, dict(values.kwargs)), memo)
    return Inputs(args, kwargs)


def may_be_index(tensor: Tensor) -> bool:
    """Whether it holds integers."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def fresh(inputs: Inputs) -> Inputs:
    """New tensors with the same values, strides and ``requires_grad``."""
    return copy_inputs(inputs, clone)


def clone(tensor: Tensor) -> Tensor:
    return with_layout_of(tensor, tensor.detach())


def with_layout_of(like: Tensor, values: Tensor) -> Tensor:
    """A new tensor that holds ``values``, with the strides of ``like`` where it has the same sizes, else in the same
    order of strides. An expanded dimension (stride 0) stays expanded, and takes its first value."""
    if like.layout is not torch.strided or like.is_quantized or values.layout is not torch.strided:
        return values.clone()
    expanded = [
        d for d, (size, stride) in enumerate(zip(like.shape, like.stride(), strict=True)) if not stride and size > 1
    ]
    base = values
    for dim in expanded:
        base = base.narrow(dim, 0, 1) if base.shape[dim] else base
    order = sorted(range(base.dim()), key=lambda d: like.stride(d) or 0, reverse=True)
    back = sorted(range(base.dim()), key=order.__getitem__)
    result = base.detach().permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    if result.shape == like.shape and result.stride() != like.stride() and not expanded:
        result = _exactly(like, result)
    result = result.expand(values.shape)
    return result.requires_grad_(True) if like.requires_grad and result.is_floating_point() else result


def _exactly(like: Tensor, values: Tensor) -> Tensor:
    """Gaps between elements (a slice of something larger) are kept; overlapping ones (``unfold``) are not."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    reached = 1
    for stride, size in sorted(zip(like.stride(), like.shape, strict=True)):
        if size > 1 and stride < reached:
            return values
        reached = max(reached, stride * (size - 1) + 1) if size > 1 else reached
    if not values.numel() or span > 4 * values.numel():
        return values
    return torch.empty_strided(like.shape, like.stride(), dtype=values.dtype, device=values.device).copy_(values)


def _as_tensor(item: Any) -> Tensor:
    tensor = item if isinstance(item, Tensor) else tensor_of(item)
    assert tensor is not None
    return tensor


def _is_changeable(item: Any) -> bool:
    """A picture or a masked array holds numbers, too, but only its own class can make another one."""
    return type(item).__module__ == "numpy" and tensor_of(item) is not None


def _is_written(item: Any) -> bool:
    """Not so a NumPy number, and an array that is read-only."""
    return isinstance(item, Tensor) or (is_array(item) and _as_tensor(item).data_ptr() == item.ctypes.data)


def _walk(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Tensors, and what can be seen as one."""
    for at, part, item in Structure.of(value).walk_all(value, path):
        if part.kind == "tensor" or (part.kind == "opaque" and tensor_of(item) is not None):
            yield at, item
        elif part.is_opaque and depth < _DEEPEST and id(item) not in seen and not is_code(item):
            seen.add(id(item))
            for name, attribute in attributes_of(item).items():
                yield from _walk(attribute, f"{at}.{name}", depth + 1, seen)
