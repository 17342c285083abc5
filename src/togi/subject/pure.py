"""A module that changes nothing, neither what it is given nor itself: what an engine is made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from togi.subject.effects import ChangedArgument, Effects, arguments_of
from togi.subject.inputs import Inputs
from togi.subject.nested import mapped
from togi.subject.state import WithState
from togi.torch_internals.modules import in_training


def pure(module: nn.Module, effects: Effects) -> nn.Module:
    """The module in the form that an engine can stand for."""
    if effects.state:
        module = WithState(module, effects.state)
    return Pure(module, effects) if effects.changes or effects.carried is not None else module


class Pure(nn.Module):
    """A module that changes nothing it is given: returns ``(output, new tensors)``."""

    def __init__(self, module: nn.Module, effects: Effects) -> None:
        super().__init__()
        self.module = module
        self.effects = effects
        self.training = in_training(module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        fresh: dict[str | int, list[Tensor]] = {}
        call_inputs = Inputs(args, kwargs)
        for change in self.effects.changes:
            call_inputs = _replaced(call_inputs, change, fresh)
        output = self.module(*call_inputs.args, **call_inputs.kwargs)
        return self.effects.split(output, call_inputs, fresh)


def _replaced(call_inputs: Inputs, change: ChangedArgument, fresh: dict[str | int, list[Tensor]]) -> Inputs:
    """The argument in containers of its own, its overwritten tensors copied: the call may do with it what it likes."""
    tensors: list[Tensor] = []

    def own(tensor: Tensor) -> Tensor:
        tensors.append(tensor.clone() if len(tensors) in change.written else tensor)
        return tensors[-1]

    value = mapped(dict(arguments_of(call_inputs))[change.argument], own)
    fresh[change.argument] = tensors
    if isinstance(change.argument, int):
        args = (*call_inputs.args[: change.argument], value, *call_inputs.args[change.argument + 1 :])
        return Inputs(args, call_inputs.kwargs)
    return Inputs(call_inputs.args, {**call_inputs.kwargs, change.argument: value})
