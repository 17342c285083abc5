"""Parts of ``nn.Module`` that have no public name: hooks, the dicts of parameters and buffers, compiled calls.

Behind it: ``Module._forward_hooks``, ``_forward_pre_hooks``, ``_parameters``, ``_buffers``, ``_compiled_call_impl``,
``_apply``, ``_orig_mod`` of torch.compile's wrapper, nn.modules.batchnorm._BatchNorm (torch 2.9 to 2.15). When they go:
``named_parameters(recurse=False)`` and ``setattr`` replace the dicts; hooks would have to be asked of a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

__all__ = [
    "BatchNorm",
    "compiled_original",
    "convert_tensors",
    "forget_compiled_call",
    "forward_hook_counts",
    "own_buffers",
    "own_parameters",
]


def forward_hook_counts(module: nn.Module) -> tuple[int, int]:
    """``(forward hooks, forward pre-hooks)`` registered on this module itself."""
    return len(module._forward_hooks), len(module._forward_pre_hooks)


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The module's own dict of parameters, without those of its children. Assigning to it replaces a parameter."""
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """The module's own dict of buffers, without those of its children. Assigning to it replaces a buffer."""
    return module._buffers


def convert_tensors(module: nn.Module, convert: Callable[[Tensor], Tensor]) -> None:
    """Every parameter, gradient and buffer through ``convert``, in place, as ``module.to`` does."""
    module._apply(convert)  # type: ignore[no-untyped-call]


def compiled_original(module: nn.Module) -> Any:
    """The module inside of ``torch.compile(module)``; None for any other module."""
    return getattr(module, "_orig_mod", None)


def forget_compiled_call(module: nn.Module) -> None:
    """Undo ``module.compile()``: calls run the plain ``forward`` again."""
    module._compiled_call_impl = None
