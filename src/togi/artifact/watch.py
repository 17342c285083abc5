"""What a part relies on in the live module: an engine answers for that module as it was when the part was put in.

Asked before every call, so nothing is walked there: the dicts of the module and of all its parts were collected once,
and are compared with copies of them, by identity of what they hold.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter, getitem, is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from togi.artifact.attributes import PlainAttributes
from togi.artifact.calls_code import UsersCode
from togi.torch_internals.autograd import version_of
from togi.torch_internals.deferred import Deferred
from togi.torch_internals.layouts import NoStorage, storages_of
from togi.torch_internals.modules import forward_hooks, forward_pre_hooks, own_buffers, own_modules, own_parameters
from togi.torch_internals.tensors import storage_key


def _memory(tensor: Any) -> set[int]:
    if type(tensor) is Deferred:
        return set()
    try:
        return set(map(storage_key, storages_of(tensor)))
    except NoStorage:
        return set()


_in_training = itemgetter("training")
_address = Tensor.data_ptr
_wants_gradients = attrgetter("requires_grad")


class _HeldPlace(NamedTuple):
    """Where a module, or a part of it, holds something."""

    kind: str
    prefix: str
    now: dict[Any, Any]
    before: dict[Any, Any]


class Watch:
    """A module's weights, buffers, parts, plain attributes, modes, hooks and the user's own code that it runs, as they
    are when this is made."""

    def __init__(self, module: nn.Module, state: Collection[str] = ()) -> None:
        """``state``: buffers that hold its state from call to call: these may change."""
        # what TorchScript holds is in no dict of Python's; its weights are looked at below
        parts = {n: part for n, part in module.named_modules() if not isinstance(part, torch.jit.ScriptModule)}
        self.attributes = PlainAttributes(parts, state)
        self._code = UsersCode(frozenset(map(type, parts.values())))
        self._modes = {name: vars(part) for name, part in parts.items() if "training" in vars(part)}
        self._state = frozenset(state)
        keeps = {name.rpartition(".")[0] for name in state}
        places = [
            _HeldPlace(kind, f"{name}." if name else "", contents, dict(contents))
            for name, part in parts.items()
            for kind, contents in (
                ("weight", own_parameters(part)),
                ("buffer", own_buffers(part)),
                ("part", own_modules(part)),
                ("forward hook", forward_hooks(part)),
                ("forward pre-hook", forward_pre_hooks(part)),
            )
            if kind != "buffer" or name not in keeps
        ]
        filled = [place for place in places if place.before]
        beside_state = [_beside(self._state, name, own_buffers(parts[name])) for name in keeps if name in parts]
        self._places = [*places, *beside_state]
        self._flat_modes = tuple(self._modes.values())
        self._empty = tuple(place.now for place in places if not place.before)
        self._now, self._before = [place.now for place in filled], [place.before for place in filled]
        single = [
            (place.now, key, held)
            for place in filled
            for key, held in place.before.items()
            if isinstance(held, Tensor) and held.numel() == 1
        ]
        single += [(place.now, key, held) for place in beside_state for key, held in place.before.items()]
        self._single_places = tuple(place for place, _, _ in single)
        self._single_keys = tuple(key for _, key, _ in single)
        self._singles = tuple(tensor for _, _, tensor in single)
        self._leaves = (*module.parameters(), *(b for name, b in module.named_buffers() if name not in state))
        self._look_at_tensors()
        named = [*module.named_parameters(), *module.named_buffers()]
        tensors = {name: tensor for name, tensor in named if name not in state}
        self._written = {name: version_of(tensor) for name, tensor in tensors.items() if not tensor.is_inference()}
        self._versioned = tuple(tensors[name] for name in self._written)
        self._versions = sum(self._written.values())
        # of weights alone: module.to() puts other buffers in their places, and this is the dearest of the looks
        self._lie = {name: _address(weight) for name, weight in module.named_parameters() if _lies_in_memory(weight)}
        self._lying = tuple(tensors[name] for name in self._lie)
        self._addresses = list(self._lie.values())
        self._memory = [tensor.untyped_storage() for tensor in self._lying]
        """Kept, so that nothing else can come to lie at these addresses."""

    def changed(self) -> str:
        """What of the module is not as it was, in words; empty where all is.

        What is done to ``weight.data`` in place, and to inference tensors, leaves no trace, and ``buffer.data = other``
        is not looked for. 65 us for the 213 modules of a MobileNetV2, where counting writes to its 158 weights alone
        takes 11 us (two busy cores of an EPYC, 2026-11-24); plain attributes make it a third more (150 us for 114 us on
        the same cores, busier, 2026-11-26).
        """
        if (
            any(map(_in_training, self._flat_modes))
            or any(self._empty)
            or not self._holds_the_same()
            or not self.attributes.are_the_same()
            or not self.attributes.are_unwritten()
            or sum(map(version_of, self._versioned)) != self._versions
            or list(map(_address, self._lying)) != self._addresses
            or self._code.edited()
        ):
            return self._what_changed()
        return ""

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor lies in the memory of a weight, a buffer or a tensor in an attribute, as they are where
        nothing has ``changed``."""
        return not self._own_memory.isdisjoint(_memory(tensor))

    def wants_gradients(self) -> bool:
        """Whether anything that the module holds requires gradients."""
        return any(map(_wants_gradients, self._may_want_gradients))

    def gradients_wanted(self) -> tuple[bool, ...]:
        """Of each weight and buffer, and of the tensors in plain attributes, whether it requires gradients."""
        return tuple(map(_wants_gradients, self._may_want_gradients))

    def with_gradients(self) -> list[Tensor]:
        """Those that do."""
        return [tensor for tensor in self._may_want_gradients if tensor.requires_grad]

    def accept_attributes(self) -> None:
        """From now on its plain attributes are meant to be as they are."""
        self.attributes.look_again()
        self._look_at_tensors()

    def _look_at_tensors(self) -> None:
        self._may_want_gradients = (*self._leaves, *(tensor for _, tensor in self.attributes.tensors()))
        self._own_memory = frozenset(key for tensor in self._may_want_gradients for key in _memory(tensor))

    def _holds_the_same(self) -> bool:
        try:
            if self._now != self._before:  # of what is not the very same, a tensor's == is asked
                return False
            # tensors of one equal number would pass for each other
            return all(map(is_, map(getitem, self._single_places, self._single_keys), self._singles))
        except Exception:  # one is gone; the truth of a tensor that is not one number, or another class's own ==
            return False

    def _what_changed(self) -> str:
        for name, attributes in self._modes.items():
            if attributes["training"]:
                return f"its part '{name}' is in training mode" if name else "the module is in training mode"
        since = "since the tuned part was put in, which answers for the module as it was then: call .remove()"
        for kind, prefix, now, before in self._places:
            hooks = kind.startswith("forward")
            for key in [*now, *(gone for gone in before if gone not in now)]:
                name = (prefix.removesuffix(".") or "the module itself") if hooks else f"{prefix}{key}"
                if f"{prefix}{key}" in self._state:
                    continue
                if key not in before:
                    return (
                        f"a {kind} was put on '{name}' {since}" if hooks else f"the {kind} '{name}' was added {since}"
                    )
                if key not in now:
                    return (
                        f"a {kind} of '{name}' was removed {since}" if hooks else f"its {kind} '{name}' is gone {since}"
                    )
                if now[key] is not before[key]:
                    return f"its {kind} '{name}' was replaced by another {since}, and tune it again"
        if changed := self.attributes.what_changed():
            return f"{changed} {since}, and tune it again"
        for name, tensor in zip(self._written, self._versioned, strict=True):
            if version_of(tensor) != self._written[name]:
                return f"its weights were changed ('{name}' was written to) {since}, and tune it again"
        for name, tensor in zip(self._lie, self._lying, strict=True):
            if _address(tensor) != self._lie[name]:
                return f"its '{name}' was given other values, of {tensor.dtype}, {since}, and tune it again"
        if edited := self._code.edited():
            return f"its code was edited ('{edited}') {since}, and tune it again"
        return f"its weights, parts, modes or hooks were changed {since}"


def _beside(state: Collection[str], name: str, buffers: dict[str, Tensor | None]) -> _HeldPlace:
    """Where a part holds a state, which changes: its other buffers."""
    prefix = f"{name}." if name else ""
    return _HeldPlace("buffer", prefix, buffers, {k: held for k, held in buffers.items() if prefix + k not in state})


def _lies_in_memory(tensor: Tensor) -> bool:
    """Not so the sparse, and others that have no memory of their own."""
    try:
        return _address(tensor) != 0 and tensor.untyped_storage().nbytes() > 0
    except (RuntimeError, NotImplementedError):
        return False
