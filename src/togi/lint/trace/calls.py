"""Which torch function the calling thread is in: what an operator is called for, as the user wrote it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Call:
    """One call of a torch function, with its arguments as they were given."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def short(self) -> str:
        return getattr(self.function, "__name__", "")


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[Call] = []


_calls = _Calls()


def stack() -> list[Call]:
    """The open calls of this thread, outermost first."""
    return _calls.stack


def current() -> Call | None:
    return _calls.stack[-1] if _calls.stack else None


def name(op: str) -> str:
    """The user's name for what is happening: the outermost open call, else the operator's own (``aten.nonzero``)."""
    return spelled(_calls.stack[0].function) if _calls.stack else op.removesuffix(".default")


def spelled(function: Callable[..., Any]) -> str:
    """``Tensor.item``, ``torch.nonzero``, ``torch.nn.functional.one_hot``."""
    short = getattr(function, "__name__", str(function))
    if hasattr(torch.Tensor, short) and getattr(torch.Tensor, short, None) is function:
        return f"Tensor.{short}"
    module = getattr(function, "__module__", None) or ""
    qualified = getattr(function, "__qualname__", short)
    if "TensorBase" in qualified or getattr(function, "__objclass__", None) in torch.Tensor.__mro__:
        return f"Tensor.{short}"
    if module.startswith("torch._ops"):
        return f"torch.ops{module.removeprefix('torch._ops')}.{short}"
    if module.startswith("torch") and "_C" not in module:
        return f"{module}.{short}"
    return f"torch.{short}" if hasattr(torch, short) else short
