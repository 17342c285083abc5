"""Blocks of ``torch.autocast``, in which nothing was proven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def call_without_autocast(device: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Torch's own engines would cast in such a block, others would not."""
    if not torch.is_autocast_enabled(device):
        return call(*args, **kwargs)
    with torch.autocast(device, enabled=False):
        return call(*args, **kwargs)


def autocast() -> str:
    """``bfloat16 on cpu`` in a block of ``torch.autocast``, in this thread; empty outside of one."""
    on = (kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind))
    return ", ".join(f"{str(torch.get_autocast_dtype(kind)).removeprefix('torch.')} on {kind}" for kind in on)
