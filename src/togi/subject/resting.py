"""Copies of tensors that take no memory: they rest in files without a name, mapped, until they are read again.

What a training step is compared with is several times its parameters, and must fit next to the step itself.
"""

from __future__ import annotations

import os
import tempfile

import torch
from torch import Tensor

_SMALL_BYTES = 1 << 20


def resting(tensor: Tensor) -> Tensor:
    """A copy on the CPU, in a file that goes away with it. Small tensors, and layouts that are not dense, stay in
    memory; so does everything where there is no room for files."""
    dense = tensor.layout is torch.strided and not tensor.is_quantized
    if not dense or tensor.nbytes < _SMALL_BYTES:
        return tensor.detach().clone()
    try:
        rested = _mapped(tensor)
    except (OSError, RuntimeError):  # no folder for temporary files, or it is full
        return tensor.detach().clone()
    return rested.copy_(tensor.detach())


def _mapped(tensor: Tensor) -> Tensor:
    """Memory of the same size in a file. Its place is taken now: a full disk would end the process at the first
    write."""
    descriptor, name = tempfile.mkstemp(prefix="togi-")
    try:
        os.posix_fallocate(descriptor, 0, tensor.nbytes)
        return torch.from_file(name, shared=True, size=tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
    finally:
        os.close(descriptor)
        os.unlink(name)
