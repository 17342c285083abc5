"""Gradients of a captured function: one graph that repeats the forward pass and goes back.

So nothing outlives a replay: graphs share their memory in any order of calls, several forward passes may wait for their
backward, and what the caller accumulates is the caller's. ``torch.cuda.make_graphed_callables`` keeps what the forward
pass saved, and hands out its own buffers as gradients, which the next backward pass overwrites (pytorch issue 181723).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from togi.graphs.pool import GraphError
from togi.torch_internals.behind import modules_behind
from togi.torch_internals.tensors import tensors_of, tree_flatten, tree_unflatten

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Replays:
    """The two graphs of one size, as functions."""

    forward: Callable[[Sequence[Tensor]], list[Tensor]]
    """Results for the inputs."""
    backward: Callable[[Sequence[Tensor], Sequence[Tensor | None]], Sequence[Tensor | None]]
    """Gradients of the wanted inputs and of the weights, for the inputs and the gradients of the results; None for one
    that has none."""
    differentiable: Sequence[bool]
    """By result."""
    wanted: Sequence[bool]
    """By input: whether its gradient is computed."""


class ReplayedCall(torch.autograd.Function):
    """One call, for autograd: ``apply(replays, *inputs, *weights)`` gives the results."""

    @staticmethod
    def forward(ctx: Any, replays: Replays, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.replays = replays
        ctx.set_materialize_grads(False)  # a result that the loss does not use has no gradient, which is not zeros
        ctx.save_for_backward(*tensors)  # the weights too: autograd refuses where they changed before backward
        results = replays.forward(tensors[: len(replays.wanted)])
        pairs = zip(results, replays.differentiable, strict=True)
        ctx.mark_non_differentiable(*(tensor for tensor, differs in pairs if not differs))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise GraphError(
                "gradients of gradients are not captured, and create_graph=True asks for them: call the function that "
                "was captured, instead of what replays it"
            )
        replays: Replays = ctx.replays
        inputs = ctx.saved_tensors[: len(replays.wanted)]
        pairs = zip(gradients, replays.differentiable, strict=True)
        computed = iter(replays.backward(inputs, [tensor if differs else None for tensor, differs in pairs]))
        return (None, *(next(computed) if wants else None for wants in replays.wanted), *computed)


def gradients_of(
    fn: Function,
    weights: Sequence[Tensor],
    wanted: Sequence[bool],
    ahead: Callable[[Sequence[Tensor]], Sequence[Tensor | None]],
    *,
    zeros: bool,
) -> Callable[..., Sequence[Tensor]]:
    """A function of the same arguments that returns the gradients of the wanted tensors among them, and of the weights.

    Args:
        wanted: by tensor of a call, in order.
        ahead: of the results that have gradients, the gradients that arrive there; None where none does.
        zeros: instead of None for what no gradient reaches.
    """

    def run(*args: Any, **kwargs: Any) -> Sequence[Tensor]:
        leaves, form = tree_flatten((args, kwargs))
        places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for at, wants in zip(places, wanted, strict=True):
            leaves[at] = leaves[at].detach().requires_grad_(wants)
        args_again, named = tree_unflatten(leaves, form)
        with torch.enable_grad():
            results = [tensor for tensor in tensors_of(fn(*args_again, **named)) if tensor.requires_grad]
        inputs = [leaves[at] for at, wants in zip(places, wanted, strict=True) if wants]
        reached = [(result, given) for result, given in zip(results, ahead(results), strict=True) if given is not None]
        return torch.autograd.grad(
            [result for result, _ in reached],
            [*inputs, *weights],
            [given for _, given in reached],
            allow_unused=True,
            materialize_grads=zeros,
        )

    return run


def plus_and_minus(results: Sequence[Tensor]) -> list[Tensor]:
    """Gradients to compare by: each 1 or -1, which every dtype holds exactly; by the shapes of the results alone."""
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randint(0, 2, t.shape, generator=generator) * 2 - 1).to(device=t.device, dtype=t.dtype) for t in results
    ]


def same_weights(fn: Function, weights: Sequence[Tensor], copied: Function) -> list[Tensor]:
    """The weights of a copy that stand where ``weights`` do in ``fn``; without modules behind it, the same.

    Raises KeyError where no module names one.
    """
    if copied is fn or not modules_behind(fn):
        return list(weights)
    names = {id(tensor): place for place, tensor in _named_weights(fn)}
    of_copy = dict(_named_weights(copied))
    return [of_copy[names[id(weight)]] for weight in weights]


def _named_weights(fn: Function) -> Iterator[tuple[tuple[int, str], Tensor]]:
    for at, module in enumerate(modules_behind(fn)):
        yield from (((at, name), tensor) for name, tensor in module.named_parameters())
