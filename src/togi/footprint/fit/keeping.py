"""What autograd keeps of a forward pass, under a plan: as it is, in fewer bits, or not at all.

Source: torch.autograd.graph.saved_tensors_hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from togi.footprint.fit.compressed import packed_form
from togi.footprint.fit.plan import Action
from togi.footprint.fit.rebuild import rebuild
from togi.footprint.fit.recording import Recording
from togi.footprint.fit.values import Slot, Value

_FORMS = {Action.BITS: torch.bool, Action.NARROW: torch.float32}
Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


class Dropped:
    """Stands for a saved tensor that is had again from its value."""

    __slots__ = ("__weakref__", "given_out", "slot")

    def __init__(self, value: Value, tensor: Tensor) -> None:
        self.slot = Slot(value, tensor)
        self.given_out = False
        value.awaited += 1

    def unpack(self) -> Tensor:
        value = self.slot.value
        tensor = self.slot.of(rebuild(value))
        if not self.given_out:
            self.given_out = True
            value.awaited -= 1
        if value.awaited <= 0:
            value.rebuilt = None  # a second backward pass computes it a third time
        return tensor


class Kept:
    """The tensor itself. With hooks in force torch does not see that it was written into since; this does."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor, tensor._version

    def unpack(self) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a "
                f"tensor of shape {list(self.tensor.shape)} is at version {self.tensor._version}; expected version "
                f"{self.version} instead. It would be so without the plan, too."
            )
        return self.tensor


class Keeper:
    """The hooks of one forward pass. ``actions``: by the key of a value; others are kept as they are."""

    def __init__(
        self, actions: Mapping[str, Action], outer: Hooks | None = None, recording: Recording | None = None
    ) -> None:
        self._actions = actions
        self._outer = outer
        self.recording = recording or Recording(lambda key: actions.get(key) is Action.KEEP)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Round the forward pass."""
        try:
            with self.recording, saved_tensors_hooks(self.pack, self.unpack):
                yield
        finally:
            self.recording.close()

    def pack(self, tensor: Tensor) -> Any:
        value = self.recording.value_of(tensor)
        if value is None or (value.maker is None and not _is_packed(value)):
            return self._kept(tensor)
        action = self._actions.get(value.key)
        if action in _FORMS and not _is_packed(value) and (form := packed_form(tensor, _FORMS[action])) is not None:
            value.held, value.maker = form, None
        if _is_packed(value) or action is Action.RECOMPUTE:
            return Dropped(value, tensor)
        self.recording.hold(value, tensor)
        return self._kept(tensor)

    def unpack(self, found: Any) -> Tensor:
        if isinstance(found, Dropped | Kept):
            return found.unpack()
        assert self._outer is not None
        return self._outer[1](found)

    def _kept(self, tensor: Tensor) -> Any:
        return Kept(tensor) if self._outer is None else self._outer[0](tensor)


def _is_packed(value: Value) -> bool:
    return value.held is not None and not isinstance(value.held, Tensor)


def hooks_in_force() -> Hooks | None:
    """The caller's own hooks for saved tensors: what a plan keeps is theirs to keep."""
    found = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return (found[0], found[1]) if found else None
