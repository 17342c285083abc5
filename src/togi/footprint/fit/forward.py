"""Replaces the forward of a live module by an object that stands for it, and gives the module its own back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import CodeType
from typing import Any

import torch
from torch import nn

_FORWARD = "forward"


class ReplacedForward(ABC):
    """Stands where a module's ``forward`` stood. Survives ``deepcopy`` and pickling: a copy serves the copy."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.replaced = vars(module).get(_FORWARD)
        """An instance's own forward, which other libraries set too."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's call under the plan."""

    @property
    def __code__(self) -> CodeType:
        """The code of the forward that was replaced: torch.export names its lines."""
        code: CodeType = (self.replaced or type(self.module).forward).__code__
        return code

    def put(self) -> None:
        """On the module, as an instance attribute: parameter names, hooks and ``state_dict`` stay as they are."""
        object.__setattr__(self.module, _FORWARD, self)

    def take_away(self) -> None:
        """The module has the forward that it had before ``put``."""
        if self.replaced is None:
            del self.module.__dict__[_FORWARD]
        else:
            self.module.__dict__[_FORWARD] = self.replaced

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The forward that was replaced."""
        if self.replaced is not None:
            return self.replaced(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


def forward_of(module: nn.Module) -> ReplacedForward | None:
    """The object that a plan put on the module; None where there is none."""
    forward = vars(module).get(_FORWARD)
    return forward if isinstance(forward, ReplacedForward) else None


def restore(modules: Iterable[nn.Module]) -> None:
    """Give each module its own ``forward`` back; those without a plan are left alone."""
    for module in modules:
        if (replacement := forward_of(module)) is not None:
            replacement.take_away()


def why_not_replaceable(module: nn.Module) -> str:
    """The reason why its forward cannot be replaced; empty where it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is TorchScript, whose forward is not Python's. Plan the module that it was made from"
    if forward_of(module) is not None:
        return "it runs under a plan already: call that plan's remove() first"
    return ""
