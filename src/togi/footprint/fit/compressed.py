"""Keeps what autograd keeps in fewer bits: float32 as bfloat16, masks as one bit for each element.

Parameters are left as they are: they live anyway, and a copy would cost. A tensor that several operations keep is
packed once.

Source: torch.autograd.graph.saved_tensors_hooks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from togi.footprint.fit.values import flat, wait_for_device

SMALLEST_BYTES = 4096
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


def packed_form(tensor: Tensor, dtype: torch.dtype) -> Narrow | Bits | None:
    """Its whole storage in fewer bits, if it is of that dtype (bool or float32) and large enough to be worth it."""
    whole = flat(tensor.detach())
    if tensor.dtype is not dtype or whole.nbytes < SMALLEST_BYTES:
        return None
    return pack_bits(whole) if dtype is torch.bool else Narrow(whole.to(torch.bfloat16))


def ms_per_byte(dtype: torch.dtype, device: str = "cpu") -> float:
    """Measured: of packing a tensor of that dtype (bool or float32), or of unpacking it."""
    tensor = torch.ones(1 << 22, device=device, dtype=dtype)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        form = packed_form(tensor, dtype)
        assert form is not None
        form.unpack()
        wait_for_device()
        times.append((time.perf_counter() - began) * 1e3 / 2)
    return min(times) / tensor.nbytes
