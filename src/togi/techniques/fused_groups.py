"""The groups of an optimizer under its fused kernel: while they train, where a checkpoint is loaded and written, and
afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from togi.techniques.optimizer_layout import before_updates, is_dense

Group = dict[str, Any]


class FusedGroups:
    """The groups that an optimizer has now, under ``fused=True``. Groups that are added later stay as they come.

    A group is known by its list of parameters, which outlasts the loading of a checkpoint, or by its dict, which
    outlasts another list.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._own = [(group, group["params"], _settings(group)) for group in optimizer.param_groups]
        """Each group, its parameters, and the settings that it has without the recipe."""
        self._set_and_count()
        self._handles = (
            before_updates(optimizer, lambda _: self._set()),
            optimizer.register_load_state_dict_post_hook(lambda _: self._loaded()),
            optimizer.register_state_dict_post_hook(lambda _, saved: self._as_without(saved)),
        )

    def release(self) -> None:
        """Leave the groups as they are without it."""
        for handle in self._handles:
            handle.remove()
        for group, own in self._groups():
            group.update(own)
            self._count(group)

    def _groups(self) -> Iterator[tuple[Group, Group]]:
        """Each group with its own settings."""
        known = {id(it): own for group, parameters, own in self._own for it in (group, parameters)}
        for group in self._optimizer.param_groups:
            own = known.get(id(group), known.get(id(group["params"])))
            if own is not None:
                yield group, own

    def _set(self) -> None:
        """Before every step: a group that the kernel cannot take now is stepped as it is without the recipe."""
        for group, own in self._groups():
            fused = _can_be_fused(self._optimizer, group)
            group.update(dict.fromkeys(own) | {"fused": True} if fused else own)

    def _loaded(self) -> None:
        """A checkpoint brought settings and a state of its own."""
        self._own = [(group, group["params"], _settings(group)) for group, _ in self._groups()]
        self._set_and_count()

    def _set_and_count(self) -> None:
        self._set()
        for group, _ in self._groups():
            self._count(group)

    def _count(self, group: Group) -> None:
        for parameter in group["params"]:
            if counted := _counted(self._optimizer.state.get(parameter), group, parameter.device):
                self._optimizer.state[parameter].update(counted)

    def _as_without(self, saved: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint without a trace of it. Saved groups are copies, and their order is that of the groups."""
        settings = {id(group): own for group, own in self._groups()}
        groups = [
            {**packed, **settings.get(id(group), {})}
            for packed, group in zip(saved["param_groups"], self._optimizer.param_groups, strict=True)
        ]
        state = dict(saved["state"])
        for group in groups:
            for key in group["params"]:
                if counted := _counted(state.get(key), group):
                    state[key] = {**state[key], **counted}
        return {**saved, "state": state, "param_groups": groups}


def _settings(group: Group) -> Group:
    return {name: group[name] for name in ("fused", "foreach") if name in group}


def _can_be_fused(optimizer: Optimizer, group: Group) -> bool:
    """Its tensors are dense, and it has momentum for all that is updated or for none: a parameter that gets its first
    gradient later than others has none yet, and the kernel makes that of a whole group."""
    updated = [parameter for parameter in group["params"] if parameter.grad is not None]
    sparse = any(parameter.grad.layout is not torch.strided for parameter in updated)
    if sparse or not all(map(is_dense, group["params"])):
        return False
    missing = {optimizer.state.get(parameter, {}).get("momentum_buffer") is None for parameter in updated}
    return not group.get("momentum") or len(missing) < 2


def _counted(state: Any, group: Group, device: torch.device | None = None) -> dict[str, Tensor]:
    """The count of steps where the group reads it: a kernel next to the parameter, and torch's default on the CPU."""
    if not isinstance(state, dict) or "step" not in state:
        return {}
    count = torch.as_tensor(state["step"], dtype=torch.float32)
    return {"step": count.to(device or count.device) if group.get("fused") or group.get("capturable") else count.cpu()}
