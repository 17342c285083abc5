"""The memory behind a tensor of any layout or class: the storages of its parts.

A sparse tensor has indices and values, a jagged one values and offsets, a subclass whatever ``__tensor_flatten__``
names. A tensor that only wraps others, without that method, is looked at by its attributes.

Behind it: torch._C._functorch's unwrapping, ``torch._from_functional_tensor``, the accessors of C++ nested tensors, and
``is_traceable_wrapper_subclass`` (torch 2.9 to 2.15). When they go: such a tensor counts as one without storages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from togi.torch_internals.autograd import is_wrapped_by_transform
from togi.torch_internals.modes import without_torch_function
from togi.torch_internals.tensors import FakeTensor

__all__ = ["NoStorage", "is_one_storage", "room_for", "storages_of"]

_OWN_MEMORY = frozenset((Tensor, nn.Parameter, FakeTensor))
_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_BY_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)
_PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)


class NoStorage(Exception):
    """A tensor whose memory torch does not show, and why."""


def is_one_storage(tensor: Tensor) -> bool:
    """Return whether all of its memory is the storage that it names: a dense tensor that is not a wrapper. False proves
    nothing."""
    return type(tensor) in _OWN_MEMORY and tensor.layout is torch.strided and not _has_more(tensor)


def storages_of(tensor: Tensor) -> list[torch.UntypedStorage]:
    """The storages that hold a tensor's values, indices and offsets.

    Raises:
        NoStorage: a part of it has none (an opaque layout such as oneDNN's).
    """
    if is_one_storage(tensor):
        return [tensor.untyped_storage()]
    with torch.no_grad(), without_torch_function():
        return list(_storages(tensor))


def room_for(piece: Tensor, dim: int, length: int) -> Tensor:
    """Uninitialised, of ``length`` along ``dim``, its dimensions in memory in the order of the piece's (channels_last,
    ...)."""
    shape = [length if d == dim else size for d, size in enumerate(piece.shape)]
    outermost_first = sorted(range(piece.dim()), key=piece.stride().__getitem__, reverse=True)
    return torch.empty_permuted(shape, outermost_first, dtype=piece.dtype, device=piece.device)


def _has_more(tensor: Tensor) -> bool:
    return tensor.is_quantized or tensor.is_nested or is_wrapped_by_transform(tensor)


def _storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    inside = _wrapped_by(tensor)
    if inside is None:
        if tensor.layout is torch.strided:
            yield tensor.untyped_storage()
        inside = _kept_by(tensor)
    for part in inside:
        yield from _storages(part)


def _wrapped_by(tensor: Any) -> list[Tensor] | None:
    """Unwrap a tensor without memory of its own; None if it has memory."""
    if is_wrapped_by_transform(tensor):
        return [torch._C._functorch.get_unwrapped(tensor)]
    if torch._is_functional_tensor(tensor):
        return [torch._from_functional_tensor(tensor)]
    if is_traceable_wrapper_subclass(tensor):
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    if isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided or _has_memory(tensor):
        return None
    wrapped = [value for value in vars(tensor).values() if isinstance(value, Tensor)]
    if not wrapped:
        raise NoStorage(f"{type(tensor).__name__} (it has no memory of its own, and shows no tensor that it wraps)")
    return wrapped


def _has_memory(tensor: Tensor) -> bool:
    """False for what ``_make_wrapper_subclass`` made."""
    if type(tensor) in _OWN_MEMORY or tensor.device.type == "meta":
        return True
    storage = tensor.untyped_storage()
    try:
        return storage.nbytes() == 0 or storage.data_ptr() != 0
    except RuntimeError:
        return False


def _kept_by(tensor: Any) -> list[Tensor]:
    """The tensors that a layout has besides, or instead of, one storage."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in _BY_ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in _BY_COLUMNS:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.layout is not torch.strided:
        raise NoStorage(f"{tensor.layout} (torch does not show the memory of this layout)")
    if tensor.is_nested:
        return [tensor._nested_tensor_size(), tensor._nested_tensor_strides(), tensor._nested_tensor_storage_offsets()]
    if tensor.is_quantized and tensor.qscheme() in _PER_CHANNEL:
        return [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]
    return []
