"""Marks tensors as lying on the simulated GPU or in pinned memory.

The mark is an attribute of the tensor's storage, so views, detached aliases, saved tensors and gradients that share
memory share the mark, and it goes away with the memory. A tensor without a storage (sparse) bears it itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from togi.torch_internals.cuda import TensorBase, real_cuda_devices
from togi.torch_internals.modes import without_torch_function
from togi.torch_internals.tensors import storage_key

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
_DEVICE = "_togi_simulated_device"
_PINNED = "_togi_simulated_pinned"


def named_device(device: Any) -> torch.device:
    """A device as it was named, by a number for a GPU; of a GPU always with its index."""
    named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return torch.device("cuda", named.index or 0) if named.type == "cuda" else named


real_device = torch.Tensor.device.__get__
"""Where a tensor really is: ``Tensor.device`` itself is replaced while CUDA is simulated."""


def device_of(tensor: Tensor) -> torch.device:
    """Where the tensor seems to be: the simulated GPU, or where it really is."""
    with without_torch_function():
        marked = getattr(_bearer(tensor), _DEVICE, None)
        return marked if marked is not None else real_device(tensor)


def on_cuda(tensor: Tensor) -> bool:
    return device_of(tensor).type == "cuda"


def place(tensor: Tensor, device: torch.device) -> Tensor:
    """Say where ``tensor`` (and all that shares its memory) lies; its values stay where they are."""
    with without_torch_function():
        if real_device(tensor).type == "cpu":
            setattr(_bearer(tensor), _DEVICE, device if device.type == "cuda" else None)
    return tensor


def place_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Say that ``storage`` lies on the GPU."""
    setattr(storage, _DEVICE, CUDA)
    return storage


def is_pinned(tensor: Tensor) -> bool:
    with without_torch_function():
        marked = bool(getattr(_bearer(tensor), _PINNED, False))
        return marked or (real_cuda_devices() > 0 and bool(TensorBase.is_pinned(tensor)))


def pin(tensor: Tensor) -> Tensor:
    with without_torch_function():
        setattr(_bearer(tensor), _PINNED, True)
    return tensor


def _bearer(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors have no storage
        return tensor


def memory_of(tensor: Tensor) -> int | None:
    """What tensors that share memory have in common; None for those without a storage (sparse, opaque)."""
    with without_torch_function():
        bearer = _bearer(tensor)
        return None if bearer is tensor else storage_key(bearer)
