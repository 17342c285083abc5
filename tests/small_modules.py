"""Modules of a few lines that tests of several rooms need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Computes(nn.Module):
    """``forward(x)`` is the given function of x."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class ComputesWith(nn.Module):
    """``forward(x)`` is the given function of the module and x; the module has these layers, parameters and buffers."""

    def __init__(self, function: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


class Counts(nn.Module):
    """Counts its calls, in a buffer or in a plain number, and its answer depends on how many there were."""

    def __init__(self, *, in_buffer: bool = True) -> None:
        super().__init__()
        if in_buffer:
            self.register_buffer("calls", torch.zeros(()))
        else:
            self.calls: Any = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls
