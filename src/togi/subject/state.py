"""State that a module keeps from one call to the next in attributes of its own, such as a streaming model's hidden
state.

An engine keeps nothing: ``WithState`` is given these values in an argument more, and leaves in it what they are after
the call, so that they are a change of an argument like any other (``togi.subject.effects``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch import nn

from togi.torch_internals.modules import in_training
from togi.torch_internals.script import attribute_of

STATE = "togi_state"
"""The keyword of that argument: a dict, by the attribute's name below the module (``encoder.hidden``)."""


class State:
    """Attributes of a live module."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self._places = [(name, *attribute_of(*_place(module, name))) for name in names]

    def read(self) -> dict[str, Any]:
        """Their values; None for one that is not there yet."""
        return {name: read() for name, read, _ in self._places}

    def write(self, values: Mapping[str, Any]) -> None:
        for name, _, write in self._places:
            write(values[name])


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    owner, _, attribute = name.rpartition(".")
    return (attrgetter(owner)(module) if owner else module), attribute  # TorchScript has no get_submodule


class WithState(nn.Module):
    """A module whose call begins with the state that it is given. Its own is after the call what it was before."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module = module
        self.names = tuple(names)
        self.training = in_training(module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        state = State(self.module, self.names)
        state_given, own = kwargs.pop(STATE), state.read()
        state.write(state_given)
        try:
            output = self.module(*args, **kwargs)
            state_given.update(state.read())
        finally:
            state.write(own)
        return output
