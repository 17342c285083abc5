"""The identity of a module: its classes and the bits of its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import torch
from torch import nn

from togi.subject.plain_tensors import bits, stored


def weights_hash(module: nn.Module, without: Collection[str] = ()) -> str:
    """Of the classes of all parts and of every weight, bit by bit (buffers too, but for those in ``without``)."""
    digest = hashlib.sha256()
    for name, part in module.named_modules():
        digest.update(f"{name}|{type(part).__name__};".encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name in without:
            continue
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)};".encode())
        for values in stored(tensor) if tensor.device.type != "meta" else ():
            if values.layout is torch.strided and values.numel():
                digest.update(bits(values))
    return digest.hexdigest()
