"""Replaces the forward of a live module by an object that stands for it, and gives the module its own back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import nn

from togi.subject.stand_in import FunctionStandIn

_FORWARD = "forward"


class ReplacedForward(FunctionStandIn, ABC):
    """Stands where a module's ``forward`` stood, and looks like it. Survives ``deepcopy`` and pickling: a copy serves
    the copy."""

    of_plan: ClassVar[bool] = True
    """A plan put it there, and takes it away."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.replaced: Callable[..., Any] | None = vars(module).get(_FORWARD)
        """An instance's own forward, which other libraries set too."""
        self.retired = False
        """The plan was removed while another library's wrapper stood round this one: the module's own forward runs."""
        self.look_like(self._before)

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's call under the plan."""

    @property
    def _before(self) -> Callable[..., Any]:
        """The forward that was replaced, bound to the module."""
        if self.replaced is not None:
            return self.replaced
        kind = type(self.module)  # asked again each time: parametrizations and FSDP change the class
        forward = next(vars(base)[_FORWARD] for base in kind.__mro__ if _FORWARD in vars(base))
        bind = getattr(type(forward), "__get__", None)
        bound: Callable[..., Any] = forward if bind is None else bind(forward, self.module, kind)
        return bound

    def __getstate__(self) -> dict[str, Any]:
        return self.own_state()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.look_like(self._before)

    def put(self) -> None:
        """On the module, as an instance attribute: parameter names, hooks and ``state_dict`` stay as they are."""
        object.__setattr__(self.module, _FORWARD, self)

    def take_away(self) -> None:
        """The module has the forward that it had before ``put``. Where another library has wrapped this one since, that
        wrapper stays, and runs what was there before."""
        if vars(self.module).get(_FORWARD) is not self:
            self.retired = True
        elif self.replaced is None:
            del self.module.__dict__[_FORWARD]
        else:
            self.module.__dict__[_FORWARD] = self.replaced

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Call the forward that was replaced."""
        return self._before(*args, **kwargs)


def forward_of(module: nn.Module) -> ReplacedForward | None:
    """The object that a plan put on the module, also below wrappers that others put round it; None where there is
    none."""
    layers = _layers(vars(module).get(_FORWARD))
    return next((layer for layer in layers if _works_for(layer, module)), None)


def forwards_of(module: nn.Module) -> list[ReplacedForward]:
    """Those that plans put on it and on the modules in it."""
    return [forward for part in module.modules() if (forward := forward_of(part)) is not None]


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


def _works_for(forward: Any, module: nn.Module) -> bool:
    """A wrapper of another library is a function, which ``deepcopy`` shares: it may call the original's."""
    of_plan = isinstance(forward, ReplacedForward) and forward.of_plan
    return of_plan and forward.module is module and not forward.retired


def _layers(forward: Any) -> Iterator[Any]:
    """An instance's forward and what it wraps, as ``functools.wraps`` leaves it (autocast of accelerate, hooks)."""
    seen: set[int] = set()
    while forward is not None and id(forward) not in seen:
        seen.add(id(forward))
        yield forward
        forward = getattr(forward, "__wrapped__", None)
