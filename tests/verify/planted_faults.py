"""Faults planted into the loops of ``training_loops``, as techniques that make a wrong step of a right one.

Each stands for a fault that was reported of a compiler, of gradient accumulation, of recomputation or of an optimizer,
or for one of its kind. ``PICTURES_FAULTS`` and ``TEXT_FAULTS`` name them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.verify.training_loops import IGNORED, Loop, Parts, nothing, rows_in_two, tokens_in_two
from togi.subject.training import TrainingStep

Plant = Callable[[TrainingStep], TrainingStep]


def looping(**changes: Any) -> Plant:
    """Another part of the loop."""

    def plant(step: TrainingStep) -> TrainingStep:
        assert isinstance(step.train_step, Loop)
        return replace(step, train_step=replace(step.train_step, **changes))

    return plant


def with_state(make: Callable[[], dict[str, Any]]) -> Plant:
    """The same with parts that remember: each step that is built has its own."""
    return lambda step: looping(**make())(step)


def gradients(change: Callable[[dict[str, nn.Parameter]], None]) -> Plant:
    """Something happens to gradients as soon as they are there."""

    def changed(parameters: dict[str, nn.Parameter]) -> None:
        with torch.no_grad():
            change({name: p for name, p in parameters.items() if p.grad is not None})

    return looping(gradients=changed)


def built(change: Callable[[TrainingStep], None]) -> Plant:
    """Something is done to module or optimizer when the step is built."""

    def plant(step: TrainingStep) -> TrainingStep:
        change(step)
        return step

    return plant


def settings(group: int | None = None, **changed: Any) -> Plant:
    """Other settings of the optimizer, of one group or of all."""

    def change(step: TrainingStep) -> None:
        for i, settings_of_group in enumerate(step.optimizer.param_groups):  # type: ignore[union-attr]
            if group in (None, i):
                settings_of_group.update(changed)

    return built(change)


def state(change: Callable[[Any], None]) -> Plant:
    """Something happens to the optimizer's state before it runs."""
    return looping(stepping=lambda _, optimizer: [change(entry) for entry in optimizer.state.values()])


def parts(change: Callable[[nn.Module], None], kind: type[nn.Module]) -> Plant:
    """Something is done to every part of a kind."""
    return built(lambda step: [change(part) for part in step.module.modules() if isinstance(part, kind)])


def backward(change: Callable[[Tensor], Tensor], *at: int) -> Plant:
    """The backward pass leaves other gradients: of all trained parameters, or of some by their places."""

    def hook(step: TrainingStep) -> None:
        trained = [parameter for parameter in step.module.parameters() if parameter.requires_grad]
        for parameter in [trained[i] for i in at] or trained:
            parameter.register_hook(change)

    return built(hook)


def _scaled(factor: float, *at: int) -> Plant:
    return backward(lambda gradient: gradient * factor, *at)


def _forget(parameter: nn.Parameter) -> None:
    parameter.grad = None


def _swapped(parameters: dict[str, nn.Parameter]) -> None:
    one, other = parameters["blocks.0.wide.weight"].grad, parameters["blocks.1.wide.weight"].grad
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


def _in_bf16(gradient: Tensor) -> Tensor:
    return gradient.bfloat16().to(gradient.dtype)


def _one_sign(gradient: Tensor) -> Tensor:
    changed = gradient.clone()
    changed.view(-1)[3] *= -1
    return changed


def _noisy(gradient: Tensor) -> Tensor:
    wave = torch.linspace(-1, 1, gradient.numel(), dtype=gradient.dtype)
    return gradient * (1 + 1e-6 * wave.view_as(gradient))


def _one_row(parameters: dict[str, nn.Parameter]) -> None:
    parameters["table.weight"].grad[7] = 0


def _stale_gradients() -> dict[str, Any]:
    before: dict[str, Tensor] = {}

    def change(parameters: dict[str, nn.Parameter]) -> None:
        now = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
        for name, gradient in before.items():
            parameters[name].grad.copy_(gradient)  # type: ignore[union-attr]
        before.update(now)

    return {"gradients": change}


def _stale_batch() -> dict[str, Any]:
    before: list[Any] = []

    def given(sample: Any) -> Any:
        before.append(sample)
        return before[-2:][0]

    return {"given": given}


def _weights(divided: Callable[[Tensor, Tensor], Parts], weight: float | None = None) -> Plant:
    """Micro-batches with the wrong weights. None: as if every token counted."""

    def wrongly(given: Tensor, labels: Tensor) -> Parts:
        pieces = divided(given, labels)
        return [(a, b, len(b) / len(labels) if weight is None else weight) for a, b, _ in pieces]

    return looping(divided=wrongly)


def _reordered(given: Tensor, labels: Tensor) -> Parts:
    return rows_in_two(given, labels)[::-1]


def _undivided(given: Tensor, labels: Tensor) -> Parts:
    return [(given, labels, 1.0)]


def _padded(given: Tensor, labels: Tensor) -> Parts:
    """What is to be ignored counts as the first token."""
    return tokens_in_two(given, labels.masked_fill(labels == IGNORED, 0))


def _one_row_detached(module: nn.Module, given: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(module(given), labels, reduction="none")
    return (losses[1:].sum() + losses[0].detach()) / len(labels)


def _smoothed(module: nn.Module, given: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(module(given), labels, label_smoothing=1e-3)


def _autocast(module: nn.Module, given: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(module(given).flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def _one_by_one(module: nn.Module, scale: float, most: float) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(scale)
            nn.utils.clip_grad_norm_([parameter], most)


def _by_value(module: nn.Module, scale: float, most: float) -> None:
    _unscaled(module, scale, most)
    nn.utils.clip_grad_value_(module.parameters(), most / 100)


def _unscaled(module: nn.Module, scale: float, _: float) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(scale)


def _clipped_first(module: nn.Module, scale: float, most: float) -> None:
    nn.utils.clip_grad_norm_(module.parameters(), most)
    _unscaled(module, scale, most)


def _only_clipped(module: nn.Module, _: float, most: float) -> None:
    nn.utils.clip_grad_norm_(module.parameters(), most)


def _fused_on_another_layout(step: TrainingStep) -> None:
    """The fused kernel takes parameters and state for one layout: it was not torch that said they are two."""
    step.module.to(memory_format=torch.channels_last)
    for group in step.optimizer.param_groups:  # type: ignore[union-attr]
        group.update(fused=True, foreach=None)


def _left_out(step: TrainingStep) -> None:
    group = step.optimizer.param_groups[1]  # type: ignore[union-attr]
    group["params"] = [p for p in group["params"] if p is not step.module.first.bias]


def _adam(step: TrainingStep) -> TrainingStep:
    """Decay in the gradient, as Adam has it, instead of in the weights."""
    settings(decoupled_weight_decay=False)(step)
    return step


def _same_draws(*_: Any) -> None:
    torch.manual_seed(0)


def _another_draw(*_: Any) -> None:
    torch.rand(1)


def _untied(step: TrainingStep) -> None:
    step.module.head.weight = nn.Parameter(step.module.head.weight.detach().clone())
    _trained(step, step.module.head.weight)


def _unfrozen(step: TrainingStep) -> None:
    step.module.places.requires_grad_(True)
    _trained(step, step.module.places)


def _trained(step: TrainingStep, parameter: nn.Parameter) -> None:
    step.optimizer.param_groups[0]["params"].append(parameter)  # type: ignore[union-attr]


def _recomputed(**how: Any) -> Plant:
    def change(step: TrainingStep) -> None:
        step.module.recomputed = lambda function, *args: checkpoint(function, *args, use_reentrant=False, **how)

    return built(change)


def _rounded(module: nn.Module, *_: Any) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.bfloat16().to(parameter.dtype))


def _biased_variance(module: nn.Module, *_: Any) -> None:
    module.norm1.running_var.mul_(0.999)


def _not_counted(module: nn.Module, *_: Any) -> None:
    module.norm1.num_batches_tracked -= 1


def _detached(step: TrainingStep) -> None:
    """The gradient does not flow through the residual."""
    second = step.module.second
    second.register_forward_pre_hook(lambda _, args: (args[0].detach(),))


def _drop_state(entry: Any) -> None:
    for tensor in entry.values():
        if isinstance(tensor, Tensor):
            tensor.zero_()


def _once_more(_: nn.Module, optimizer: Any) -> None:
    optimizer.step()


def _momentum_in_bf16(entry: Any) -> None:
    entry["momentum_buffer"].copy_(entry["momentum_buffer"].bfloat16().to(entry["momentum_buffer"].dtype))


PICTURES_FAULTS: dict[str, Plant] = {
    "all gradients doubled": _scaled(2.0),
    "one gradient times 1.001": _scaled(1.001, 0),
    "one gradient times 1.01": _scaled(1.01, 2),
    "all gradients a millionth off": backward(_noisy),
    "a gradient is missing": gradients(lambda parameters: _forget(parameters["head.bias"])),
    "a gradient is zero": _scaled(0.0, -1),
    "a gradient is transposed": backward(lambda gradient: gradient.t(), 9),
    "one element has the wrong sign": backward(_one_sign, 0),
    "gradients in bf16": backward(_in_bf16),
    "gradients of the step before": with_state(_stale_gradients),
    "gradients are not dropped": looping(dropped=nothing),
    "a branch is detached": built(_detached),
    "a row is detached": looping(loss=_one_row_detached),
    "a parameter is not in the optimizer": built(_left_out),
    "a fused optimizer with state of another layout": built(_fused_on_another_layout),
    "a sum of means": _weights(rows_in_two, 1.0),
    "a mean of means": _weights(rows_in_two, 0.5),
    "not divided, with other statistics": looping(divided=_undivided),
    "micro-batches in another order": looping(divided=_reordered),
    "the last row is dropped": looping(given=lambda sample: (sample[0][:-1], sample[1][:-1])),
    "the batch before": with_state(_stale_batch),
    "running statistics stand still": parts(lambda norm: setattr(norm, "momentum", 0.0), nn.BatchNorm2d),
    "running variance is biased": looping(stepped=_biased_variance),
    "batches are not counted": looping(stepped=_not_counted),
    "statistics taken twice in a recompute": _recomputed(),
    "batch normalisation in eval": parts(lambda norm: norm.eval(), nn.BatchNorm2d),
    "another epsilon of a norm": parts(lambda norm: setattr(norm, "eps", 2e-5), nn.BatchNorm2d),
    "no dropout": parts(lambda drop: setattr(drop, "p", 0.0), nn.Dropout),
    "more dropout": parts(lambda drop: setattr(drop, "p", 0.12), nn.Dropout),
    "the same dropout in each step": looping(before=_same_draws),
    "one draw more": looping(stepped=_another_draw),
    "decay is lost": settings(0, weight_decay=0.0),
    "decay on all": settings(1, weight_decay=0.05),
    "Adam for AdamW": _adam,
    "another beta": settings(betas=(0.9, 0.99)),
    "another epsilon": settings(eps=1e-6),
    "a rate times 1.001": built(lambda step: [g.update(lr=g["lr"] * 1.001) for g in step.optimizer.param_groups]),
    "amsgrad": built(
        lambda step: (
            [g.update(amsgrad=True) for g in step.optimizer.param_groups]
            and [s.update(max_exp_avg_sq=torch.zeros_like(s["exp_avg_sq"])) for s in step.optimizer.state.values()]
        )
    ),
    "uphill": settings(maximize=True),
    "the count of steps stands still": state(lambda entry: entry["step"].fill_(2.0)),
    "the count of steps is ahead": state(lambda entry: entry["step"].add_(1)),
    "state is reset": state(_drop_state),
    "clipping is lost": looping(clipped=_unscaled),
    "clipped one by one": looping(clipped=_one_by_one),
    "clipped by value": looping(clipped=_by_value),
    "the schedule is ignored": looping(advanced=0),
    "the schedule goes twice as fast": looping(advanced=2),
    "the optimizer runs twice": looping(stepped=_once_more),
    "parameters are rounded": looping(stepped=_rounded),
    "labels are smoothed": looping(loss=_smoothed),
    "the loss is told wrong": looping(told=lambda loss: loss * 1.01),
}
TEXT_FAULTS: dict[str, Plant] = {
    "all gradients doubled": _scaled(2.0),
    "a gradient is missing": gradients(lambda parameters: _forget(parameters["norm.bias"])),
    "gradients of two layers are swapped": gradients(_swapped),
    "a row of the table gets no gradient": gradients(_one_row),
    "gradients of the step before": with_state(_stale_gradients),
    "a mean of means": _weights(tokens_in_two, 0.5),
    "weighted by rows": _weights(tokens_in_two),
    "ignored tokens count": looping(divided=_padded),
    "dropout anew in the recompute": _recomputed(preserve_rng_state=False),
    "trained untied": built(_untied),
    "a frozen parameter is trained": built(_unfrozen),
    "clipped before it is unscaled": looping(clipped=_clipped_first),
    "not unscaled": looping(clipped=_only_clipped),
    "clipping is lost": looping(clipped=_unscaled),
    "momentum is reset": state(_drop_state),
    "momentum in bf16": state(_momentum_in_bf16),
    "Nesterov": settings(nesterov=True),
    "dampening": settings(dampening=0.1),
    "decay is lost": settings(weight_decay=0.0),
    "the schedule is ignored": looping(advanced=0),
    "no mask": built(lambda step: [setattr(block, "causal", False) for block in step.module.blocks]),
    "an approximate activation": built(lambda step: [setattr(b, "approximate", "tanh") for b in step.module.blocks]),
    "another epsilon of a norm": parts(lambda norm: setattr(norm, "eps", 1.1e-5), nn.LayerNorm),
    "computed in bf16": looping(loss=_autocast),
}
