"""Observers of operators and of torch functions, as context managers round a run.

Two levels, because each is blind somewhere. A ``DispatchObserver`` sees every operator (``aten.convolution``,
``aten.addmm``), also inside of TorchScript, composite functions and the backward pass. A ``FunctionObserver`` sees what
Python code calls (``conv2d``, ``linear``), and so what users wrote; it switches fast paths such as that of
``nn.MultiheadAttention`` off.

Behind it: torch.utils._python_dispatch, torch._C.DisableTorchFunction, ``Tensor._make_wrapper_subclass``
(torch 2.9 to 2.15). When they go: ``torch.overrides`` is public; there is no other way to see operators.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes

__all__ = [
    "DispatchObserver",
    "FunctionObserver",
    "OutsideDynamo",
    "dispatch_modes",
    "no_torch_function",
    "without_modes",
    "without_torch_function",
    "wrapper_subclass",
]

no_torch_function = torch._C._disabled_torch_function_impl
"""``__torch_function__`` of a tensor subclass that is only interested in operators."""


class DispatchObserver(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Base of whatever watches operators. Inside of ``operation`` it is not active."""

    supports_higher_order_operators = True  # torch.cond and the like would raise under the mode otherwise

    # Torch's own two have no types: without these, every observer would have to say so.
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @abstractmethod
    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run ``operator(*args, **kwargs)`` and return its result; note what is of interest."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.operation(func, args, kwargs or {})


class OutsideDynamo:
    """Mixed into an observer of runs that Dynamo leaves alone (``torch.compiler.disable``). For other observers torch
    keeps Dynamo out of every single operator, which takes some microseconds each."""

    operation: Callable[[Any, Sequence[Any], dict[str, Any]], Any]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.operation(func, args, kwargs or {})


class FunctionObserver(TorchFunctionMode):
    """Base of whatever watches torch functions. Inside of ``function`` it is not active."""

    @abstractmethod
    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run ``function(*args, **kwargs)`` and return its result; note what is of interest."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.function(func, args, dict(kwargs or {}))


def without_torch_function() -> AbstractContextManager[Any]:
    """Inside, neither ``__torch_function__`` of subclasses nor function modes are called."""
    guard: AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    return guard


def wrapper_subclass(cls: type[Tensor], shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Any:
    """An instance of the tensor subclass ``cls`` with a shape and no memory of its own."""
    return Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
