"""Keeps what an optimizer reads laid out alike while a recipe is on, and its checkpoints as a plain loop writes them.

A fused kernel of the CPU walks through a parameter, its gradient and its state by their addresses, and looks at no
stride. A loaded checkpoint, a gradient that was assigned, or a module that was converted would pair values of other
places. So every step asks again, which is cheap where nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from togi.subject.nested import mapped

Strides = tuple[int, ...]


def keep_alike(optimizer: Optimizer) -> Callable[[], None]:
    """Lay gradients and state out as their parameters: now, after loading a checkpoint, and before every fused update.

    Checkpoints hold the state contiguous, for whoever loads them without the recipe. Returns what takes this off again.
    """

    def lay_out_fused(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            if group.get("fused"):
                _lay_out(optimizer, group["params"])

    lay_out(optimizer)
    handles = (
        before_updates(optimizer, lay_out_fused),
        optimizer.register_load_state_dict_post_hook(lay_out),
        optimizer.register_state_dict_post_hook(_with_contiguous_state),
    )

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def lay_out(optimizer: Optimizer) -> None:
    """Lay gradients and state out as their parameters."""
    for group in optimizer.param_groups:
        _lay_out(optimizer, group["params"])


def before_updates(optimizer: Optimizer, prepare: Callable[[Optimizer], None]) -> RemovableHandle:
    """Call ``prepare(optimizer)`` in every step once the gradients are there. A closure makes them inside of it, as the
    trainers of other libraries do."""

    def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            prepare(optimizer)
            return None

        def prepared() -> Any:
            loss = closure()
            prepare(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], prepared, *args[2:]), kwargs
        return args, {**kwargs, "closure": prepared}

    return optimizer.register_step_pre_hook(before_step)


def is_dense(tensor: Tensor) -> bool:
    """Its elements fill one piece of memory, in any order of dimensions. Columns of a larger tensor do not."""
    if tensor.layout is not torch.strided:
        return False
    # a tensor made like it keeps its strides if it is dense
    return tensor.is_contiguous() or _alike(tensor, torch.empty_like(tensor, device="meta").stride())


def _lay_out(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        if parameter.layout is not torch.strided:
            continue
        strides = parameter.stride()
        if (gradient := parameter.grad) is not None and not _alike(gradient, strides):
            parameter.grad = _laid_out_as(parameter, gradient)
        state = optimizer.state.get(parameter)
        if isinstance(state, dict):
            for key, value in state.items():
                if isinstance(value, Tensor) and not _alike(value, strides):
                    state[key] = _laid_out_as(parameter, value)


def _alike(tensor: Tensor, strides: Strides) -> bool:
    """Strides of dimensions that hold one element address nothing. A sparse tensor has none, and a count of steps is
    not read next to the parameter."""
    if tensor.layout is not torch.strided or (own := tensor.stride()) == strides or len(own) != len(strides):
        return True
    return all(size == 1 or one == other for size, one, other in zip(tensor.shape, own, strides, strict=False))


def _laid_out_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """The same values. What has another shape, such as a factored moment, is not read next to the parameter: it stays.
    A parameter that is not dense has no layout to give."""
    if tensor.shape != parameter.shape or not is_dense(parameter):
        return tensor
    laid_out = torch.empty_strided(tensor.shape, parameter.stride(), dtype=tensor.dtype, device=tensor.device)
    return laid_out.copy_(tensor.detach())


def _with_contiguous_state(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Another dict: the one that is saved holds the live state."""
    return {**saved, "state": {key: mapped(state, _contiguous) for key, state in saved["state"].items()}}


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor.contiguous() if tensor.layout is torch.strided else tensor
