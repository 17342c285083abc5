"""Tensors of every kind as plain ones on the CPU, their bytes, and where they lie."""

from __future__ import annotations

import torch
from torch import Tensor


def plain(tensor: Tensor) -> Tensor:
    """Dense, on the CPU, without autograd; complex as real with a last dimension of 2. A copy only where needed."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg().cpu()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def stored(tensor: Tensor) -> list[Tensor]:
    """The tensors in whose memory its values lie: itself, of a sparse one its indices and values."""
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def bits(tensor: Tensor) -> memoryview:
    """The bytes of a tensor that is not nested, in the order of its elements."""
    data: memoryview = as_bytes(plain(tensor)).numpy().data
    return data


def as_bytes(tensor: Tensor) -> Tensor:
    """Of a dense one. What has a single element is contiguous with any stride, by which it cannot be seen as bytes."""
    flat = tensor.contiguous().flatten()
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def extent(tensor: Tensor) -> tuple[int, int] | None:
    """The addresses at which its memory begins, and ends. None where it has none of its own."""
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.detach().coalesce().values() if tensor.is_coalesced() else tensor.detach()._values()
    if tensor.layout is not torch.strided or tensor.numel() == 0 or tensor.device.type == "meta":
        return None
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # a wrapper subclass has no memory of its own
        return None
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + span * tensor.element_size()
