"""Memory formats: runs a module in another one, so that its caller sees no difference in strides.

Shared by ``channels_last`` and ``channels_last_3d``. Source:
https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.graph.capture import GraphModule, capture
from togi.subject.nested import mapped
from togi.subject.signature import Signature
from togi.techniques.optimizer_layout import is_dense, keep_alike, lay_out
from togi.torch_internals.modules import convert_tensors

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate
    from togi.subject.training import TrainingStep

RANKS = {torch.channels_last: 4, torch.channels_last_3d: 5}
Order = tuple[int, ...]
"""Dimensions from the largest stride to the smallest; ``(0, 1, 2, 3)`` is contiguous."""


class InMemoryFormat(nn.Module):
    """Converts inputs to the format, calls the module, gives outputs back in the dimension order of the original.

    Args:
        module: with weights in ``memory_format``.
        orders: for each flat output the order to restore, or None to return it as it comes.
    """

    def __init__(
        self,
        module: nn.Module,
        signature: Signature,
        memory_format: torch.memory_format,
        orders: Sequence[Order | None],
    ) -> None:
        super().__init__()
        self.training = False
        self.module = module
        self.signature = signature
        self.memory_format = memory_format
        self.orders = tuple(orders)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [self._converted(tensor) for tensor in self.signature.flatten_inputs(args, kwargs)]
        args, kwargs = self.signature.build_inputs(tensors)
        outputs = self.signature.flatten_outputs(self.module(*args, **kwargs))
        restored = [in_order(tensor, order) for tensor, order in zip(outputs, self.orders, strict=True)]
        return self.signature.build_outputs(restored)

    def _converted(self, tensor: Tensor) -> Tensor:
        if tensor.dim() != RANKS[self.memory_format] or not tensor.is_floating_point():
            return tensor
        return tensor.contiguous(memory_format=self.memory_format)


def in_order(tensor: Tensor, order: Order | None) -> Tensor:
    """Lay the same values out densely in this order of dimensions (a copy only where they are not)."""
    if order is None:
        return tensor
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


def order_of(tensor: Tensor) -> Order:
    """Dimensions from the largest stride to the smallest; ties, and sizes of 1, in their own order."""
    strides = tensor.stride()
    wide = iter(sorted((d for d in range(tensor.dim()) if tensor.shape[d] > 1), key=lambda d: (-strides[d], d)))
    return tuple(next(wide) if size > 1 else dim for dim, size in enumerate(tensor.shape))


def with_memory_format(candidate: Candidate, memory_format: torch.memory_format) -> Candidate:
    """The candidate in another memory format.

    A module whose Python code asks for contiguous memory (``x.view`` after a convolution) is captured, which makes that
    a ``reshape``.

    Raises Refused where no weight changes its layout, or where it runs neither way.
    """
    if candidate.signature.opaque:
        raise Refused(candidate.signature.opaque)
    originals = _outputs(candidate, candidate.module)
    try:
        return _converted(candidate, candidate.copy(), memory_format, originals)
    except RuntimeError as error:
        if "view" not in str(error) and "contiguous" not in str(error):
            raise
    captured = GraphModule(capture(candidate), candidate.signature)
    graph = candidate.with_(module=captured).copy()
    return _converted(candidate, graph, memory_format, originals).noting(
        "captured, because its code needs contiguous memory"
    )


def step_in_memory_format(step: TrainingStep, memory_format: torch.memory_format) -> TrainingStep:
    """The training step with parameters, the optimizer's state and the module's inputs in another memory format.

    The optimizer's state goes along (``keep_alike``). Raises Refused where no parameter changes its layout.
    """
    rank = RANKS[memory_format]
    module, before = step.module, {name: p.stride() for name, p in step.parameters.items()}
    dense = {name for name, p in step.parameters.items() if is_dense(p)}

    def converted(tensor: Tensor) -> Tensor:
        return tensor.contiguous(memory_format=memory_format) if tensor.dim() == rank else tensor

    convert_tensors(module, converted)
    if step.optimizer is not None:
        _convert_state(step.optimizer, converted)
    if all(parameter.stride() == before[name] for name, parameter in step.parameters.items()):
        raise Refused("no parameter has another layout in this memory format (there are none of its rank)")
    convert_inputs = functools.partial(_in_memory_format, memory_format=memory_format, rank=rank)
    hook = module.register_forward_pre_hook(convert_inputs, with_kwargs=True, prepend=True)
    no_longer_alike = None if step.optimizer is None else keep_alike(step.optimizer)

    def undo() -> None:
        own = {id(p): before[name] for name, p in step.parameters.items() if name in dense}

        def as_before(tensor: Tensor) -> Tensor:
            """All else than parameters is contiguous; gradients and state follow theirs."""
            strides = own.get(id(tensor))
            if tensor.dim() != rank or tensor.stride() == strides:
                return tensor
            if strides is None:
                return tensor.contiguous(memory_format=torch.contiguous_format)
            laid_out = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
            return laid_out.copy_(tensor.detach())

        hook.remove()
        if no_longer_alike is not None:
            no_longer_alike()
        convert_tensors(module, as_before)
        if step.optimizer is not None:
            _convert_state(step.optimizer, as_before)
            lay_out(step.optimizer)

    return step.changed(undo)


def _in_memory_format(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, memory_format: torch.memory_format, rank: int
) -> tuple[Any, Any]:
    """A hook that converts what a module is given. A function inside of another could not be pickled with it."""

    def converted(tensor: Tensor) -> Tensor:
        floating = tensor.dim() == rank and tensor.is_floating_point()
        return tensor.contiguous(memory_format=memory_format) if floating else tensor

    return mapped(args, converted), mapped(kwargs, converted)


def _convert_state(optimizer: torch.optim.Optimizer, converted: Callable[[Tensor], Tensor]) -> None:
    for state in optimizer.state.values():
        if isinstance(state, dict):
            state.update({key: mapped(value, converted) for key, value in state.items()})


def _converted(
    candidate: Candidate, module: nn.Module, memory_format: torch.memory_format, originals: list[Tensor]
) -> Candidate:
    before = {name: tensor.stride() for name, tensor in module.state_dict().items()}
    # of that rank only: module.to() asks it of four dimensions for channels_last_3d too, which is an error
    rank = RANKS[memory_format]
    convert_tensors(module, lambda t: t.to(memory_format=memory_format) if t.dim() == rank else t)
    if all(tensor.stride() == before[name] for name, tensor in module.state_dict().items()):
        raise Refused(
            "no weight has another layout in this memory format (there are none of its rank, or they have it)"
        )
    plain = InMemoryFormat(module, candidate.signature, memory_format, [None] * len(originals))
    outputs = _outputs(candidate, plain)
    orders = [
        order_of(original) if order_of(original) != order_of(output) else None
        for original, output in zip(originals, outputs, strict=True)
    ]
    return candidate.with_(module=InMemoryFormat(module, candidate.signature, memory_format, orders))


def _outputs(candidate: Candidate, module: nn.Module) -> list[Tensor]:
    """Flat outputs for the first sample; the sample and the random state stay as they are."""
    sample = candidate.samples[0].clone()
    devices = [candidate.device] if candidate.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        return candidate.signature.flatten_outputs(module(*sample.args, **sample.kwargs))
