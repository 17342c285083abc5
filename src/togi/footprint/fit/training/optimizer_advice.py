"""Advises other ways to run the optimizer, with the bytes that each was measured to save.

The optimizer is made again on copies of its parameters, runs twice with each way that torch offers, and the allocator
says what it kept (its state) and what it took for a moment in the second step (temporaries). Nothing is assumed: the
default differs between versions and devices, and so does what an implementation allocates. Other packages' optimizers
are not offered.

Sources: PyTorch documentation, torch.optim (foreach, fused); torch.optim.Adafactor (arXiv:1804.04235).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.quantities import size
from togi.footprint.fit.measure import bytes_of
from togi.footprint.step import Step
from togi.measure.memory import torch_allocator_peak_bytes
from togi.torch_internals.tensors import tensors_of

_COPIED_BYTES = 1 << 30
_WORTH_BYTES = 1 << 20
_WAYS: tuple[dict[str, bool], ...] = ({"fused": True}, {"foreach": False}, {"foreach": True})
_ADAMS = (torch.optim.Adam, torch.optim.AdamW)


@dataclass(frozen=True, kw_only=True)
class OptimizerBytes:
    """Bytes of one optimizer."""

    state: int
    temporary: int
    """The rise of the allocator in a step whose state is there."""

    @property
    def peak(self) -> int:
        """Bytes besides parameters and gradients."""
        return self.state + self.temporary


def advise(step: Step) -> tuple[str, ...]:
    """Notes on what would lower the peak of the optimizer's step by 1 MiB or more, where the optimizer is torch's.

    It counts where the optimizer's step is the peak of the training step, or its state stands in the way.
    Takes memory for copies of parameters, gradients and state for a moment. The optimizer given is left as it is.
    """
    optimizer = step.optimizer
    if optimizer is None or not step.train or not type(optimizer).__module__.startswith("torch.optim."):
        return ()
    held = sum(p.nbytes for group in optimizer.param_groups for p in group["params"])
    if held > _COPIED_BYTES:
        return (f"Other ways to run the optimizer were not measured: that needs copies of {size(held)} of parameters.",)
    now = _measured(lambda groups: _again(optimizer, groups, {}), optimizer)
    if now is None:
        return ()
    return (*_leaner_way(optimizer, now), *_adafactor(optimizer, now))


def _leaner_way(optimizer: torch.optim.Optimizer, now: OptimizerBytes) -> Iterator[str]:
    name = type(optimizer).__name__
    ways = [way for way in _WAYS if way.keys() <= optimizer.defaults.keys()]
    leanest = _leanest(ways, lambda groups, way: _again(optimizer, groups, way), optimizer)
    if leanest is not None and now.peak - leanest[0].peak >= _WORTH_BYTES:
        measured, way = leanest
        yield (
            f"{name}({_told(way)}) instead of {name}({_told(_given_way(optimizer))}) lowers the peak of the "
            f"optimizer's step by {size(now.peak - measured.peak)} (measured: {size(now.state)} of state and "
            f"{size(now.temporary)} of temporaries now). The same algorithm."
        )


def _adafactor(optimizer: torch.optim.Optimizer, now: OptimizerBytes) -> Iterator[str]:
    if type(optimizer) not in _ADAMS:
        return
    ways = ({"foreach": False}, {"foreach": True})
    leanest = _leanest(ways, _adafactor_of, optimizer)
    if leanest is not None and now.peak - leanest[0].peak >= _WORTH_BYTES:
        measured, way = leanest
        yield (
            f"Adafactor({_told(way)}) in place of {type(optimizer).__name__} keeps {size(measured.state)} of state "
            f"instead of {size(now.state)} and takes {size(measured.temporary)} of temporaries instead of "
            f"{size(now.temporary)} (measured). Another algorithm: training differs, and so does its learning rate."
        )


Groups = list[dict[str, Any]]
Way = dict[str, bool]


def _leanest(
    ways: Iterable[Way], make: Callable[..., torch.optim.Optimizer], given: torch.optim.Optimizer
) -> tuple[OptimizerBytes, Way] | None:
    """The way with the lowest peak of those that run."""
    measured = [
        (bytes_taken, way) for way in ways if (bytes_taken := _measured(partial(make, way=way), given)) is not None
    ]
    return min(measured, key=lambda entry: entry[0].peak, default=None)


def _measured(make: Callable[[Groups], torch.optim.Optimizer], given: torch.optim.Optimizer) -> OptimizerBytes | None:
    """Run the optimizer twice on copies. None where it does not run so (a dtype or device that ``fused`` does not
    know), or nothing reports."""
    groups = [{**group, "params": [_copy(p) for p in group["params"]]} for group in given.param_groups]
    try:
        optimizer = make(groups)
        optimizer.step()
        temporary = torch_allocator_peak_bytes(optimizer.step, groups[0]["params"][0].device) or 0
    except (RuntimeError, ValueError, TypeError):  # TypeError: a step that needs a closure (LBFGS)
        return None
    return OptimizerBytes(state=bytes_of(tensors_of(list(optimizer.state.values()))), temporary=temporary)


def _again(optimizer: torch.optim.Optimizer, groups: Groups, way: Way) -> torch.optim.Optimizer:
    """An optimizer of the same class, groups and settings that runs in another way."""
    changed = {**dict.fromkeys(_given_way(optimizer)), **way} if way else {}
    make: Callable[..., torch.optim.Optimizer] = type(optimizer)
    accepted = inspect.signature(make).parameters  # AdamW has a default that it does not take
    options = {name: value for name, value in {**optimizer.defaults, **changed}.items() if name in accepted}
    return make([{**group, **changed} for group in groups], **options)


def _adafactor_of(groups: Groups, way: Way) -> torch.optim.Optimizer:
    return torch.optim.Adafactor([p for group in groups for p in group["params"]], foreach=way["foreach"])


def _given_way(optimizer: torch.optim.Optimizer) -> dict[str, bool | None]:
    return {name: optimizer.defaults[name] for name in ("foreach", "fused") if name in optimizer.defaults}


def _told(way: dict[str, Any]) -> str:
    """The way as arguments; empty for the default."""
    return ", ".join(f"{name}={value}" for name, value in way.items() if value is not None)


def _copy(parameter: Tensor) -> nn.Parameter:
    copy = nn.Parameter(torch.zeros_like(parameter), requires_grad=parameter.requires_grad)
    if parameter.requires_grad:
        copy.grad = torch.zeros_like(parameter)
    return copy
