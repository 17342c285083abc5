"""Keeps what autograd keeps in fewer bits: float32 as bfloat16, masks as one bit for each element.

Parameters are left as they are: they live anyway, and a copy would cost. A tensor that several operations keep is
packed once.

Source: torch.autograd.graph.saved_tensors_hooks.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

_SMALLEST_BYTES = 4096
"""Below this, packing costs more than it brings."""


@dataclass(frozen=True)
class Narrow:
    """A float32 tensor in half the bytes. Relative error of each value at most 2**-8."""

    values: Tensor

    def unpack(self) -> Tensor:
        return self.values.to(torch.float32)


@dataclass(frozen=True)
class Bits:
    """A boolean tensor, eight elements in a byte. Exact."""

    packed: Tensor
    shape: torch.Size

    def unpack(self) -> Tensor:
        shifts = torch.arange(8, dtype=torch.uint8, device=self.packed.device)
        bits = (self.packed.unsqueeze(-1) >> shifts) & 1
        return bits.view(-1)[: self.shape.numel()].view(self.shape).to(torch.bool)


def pack_bits(mask: Tensor) -> Bits:
    """``mask``: boolean, any shape."""
    flat = mask.reshape(-1).to(torch.uint8)
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(-1, 8)
    packed = flat[:, 0].clone()
    for bit in range(1, 8):
        packed |= flat[:, bit] << bit
    return Bits(packed, mask.shape)


def compressing() -> AbstractContextManager[Any]:
    """Hooks for one call of a module."""
    packed: dict[tuple[Any, ...], tuple[weakref.ref[Any], weakref.ref[Narrow]]] = {}

    def pack(tensor: Tensor) -> Any:
        if tensor.nbytes < _SMALLEST_BYTES or (tensor.is_leaf and tensor.requires_grad):
            return tensor
        if tensor.dtype is torch.bool:
            return pack_bits(tensor)
        if tensor.dtype is not torch.float32 or (tensor._base is not None and _is_parameter(tensor._base)):
            return tensor
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor._version, tensor.storage_offset(), tensor.shape, tensor.stride())
        source, known = packed.get(key, (_gone, _gone))
        found = known() if source() is not None else None  # a dead storage's address is given to another
        if found is None:
            found = Narrow(tensor.detach().to(torch.bfloat16))
            packed[key] = weakref.ref(storage), weakref.ref(found)
        return found

    def unpack(kept: Any) -> Tensor:
        return kept if isinstance(kept, Tensor) else kept.unpack()

    return saved_tensors_hooks(pack, unpack)


def _gone() -> None:
    """As a weak reference whose object is dead."""


def _is_parameter(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad
