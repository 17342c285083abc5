"""Puts a plan on a live module: its ``forward`` becomes an object under which autograd keeps what the plan says.

What the plan says decides memory and time alone. Whatever runs, a value is computed again by the operations that made
it, on what they read, so a plan made for other sizes or another branch gives the same gradients, only another peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from togi.footprint.fit.errors import FitError
from togi.footprint.fit.keeping import Keeper, hooks_in_force
from togi.footprint.fit.plan import Action, Treatment

_FORWARD = "forward"


class TreatedForward:
    """Stands where a module's ``forward`` stood. Survives ``deepcopy`` and pickling: a copy serves the copy."""

    def __init__(self, module: nn.Module, treatments: Sequence[Treatment]) -> None:
        self.module = module
        self.actions: dict[str, Action] = {one.value: one.action for one in treatments}
        self.replaced = vars(module).get(_FORWARD)
        """An instance's own forward, which other libraries set too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not self.actions:
            return self._forward(*args, **kwargs)
        return self._watched(args, kwargs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _watched(self, args: Any, kwargs: Any) -> Any:
        """Eagerly, also inside torch.compile, which has a partitioner of its own and sees no single operations."""
        if not hooks_allowed():
            raise FitError(
                f"{type(self.module).__name__} runs inside torch.autograd.graph.disable_saved_tensors_hooks(), which "
                "forbids recomputation. It saves no memory itself: take it away, or run without the plan."
            )
        with Keeper(self.actions, hooks_in_force()).watching():
            return self._forward(*args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.replaced is not None:
            return self.replaced(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


def treat(module: nn.Module, treatments: Sequence[Treatment]) -> None:
    """Treat ``module`` in place. Raises FitError, and changes nothing then."""
    if isinstance(module, torch.jit.ScriptModule):
        raise FitError(
            f"{type(module).__name__} is TorchScript, whose forward is not Python's and cannot be replaced. Plan the "
            "module that it was scripted from."
        )
    if is_treated(module):
        raise FitError(f"{type(module).__name__} is treated by a plan already: call its remove() first")
    object.__setattr__(module, _FORWARD, TreatedForward(module, treatments))


def untreat(modules: Iterable[nn.Module]) -> None:
    """Give each module its own ``forward`` back; those that are not treated are left alone."""
    for module in modules:
        if isinstance(treated := vars(module).get(_FORWARD), TreatedForward):
            if treated.replaced is None:
                del module.__dict__[_FORWARD]
            else:
                module.__dict__[_FORWARD] = treated.replaced


def is_treated(module: nn.Module) -> bool:
    """Whether a plan is on it."""
    return isinstance(vars(module).get(_FORWARD), TreatedForward)


def hooks_allowed() -> bool:
    """Whether no ``disable_saved_tensors_hooks`` is in force."""
    return bool(torch._C._autograd._saved_tensors_hooks_is_enabled())  # type: ignore[attr-defined]
