"""A loop as one step of autograd: its backward pass recomputes tile by tile, so nothing of N x M is kept.

Source of the method: recomputation as in torch.utils.checkpoint, per tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from togi.tiling.combining import COMBINERS
from togi.tiling.loops import Product
from togi.tiling.program import TileLoop, Tiles
from togi.torch_internals.autograd import below_autocast, replace_saved, without_saved_tensor_hooks


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: LoopRun, *reads: Any) -> Any:
        results = run.loop.run(reads, run.length, run.tiles)
        flat = [tensor for result in results for tensor in _tensors(result)]
        ctx.run = run
        ctx.numbers = [None if isinstance(read, Tensor) else read for read in reads]
        needed = [
            tensor for p, r in zip(run.loop.products, results, strict=True) if p.combined for tensor in _tensors(r)
        ]
        ctx.save_for_backward(*(read for read in reads if isinstance(read, Tensor)), *needed)
        ctx.mark_non_differentiable(*(tensor for tensor in flat if not tensor.is_floating_point()))
        return tuple(flat)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        saved = iter(ctx.saved_tensors)
        reads = [next(saved) if number is None else number for number in ctx.numbers]
        return None, *ctx.run.backward(reads, list(saved), gradients, ctx.needs_input_grad[1:])


class LoopRun:
    """One loop with all that one call decided about it."""

    def __init__(self, loop: TileLoop, length: int, tiles: Tiles, backward_tile: int) -> None:
        self.loop, self.length, self.tiles, self.backward_tile = loop, length, tiles, backward_tile

    def __call__(self, reads: Sequence[Any]) -> list[Any]:
        """The products, with gradients where ``reads`` have them."""
        if not (torch.is_grad_enabled() and any(isinstance(r, Tensor) and r.requires_grad for r in reads)):
            with torch.no_grad():  # compiled code is made for one mode
                return self.loop.run(reads, self.length, self.tiles)
        flat = iter(_Recomputed.apply(self, *reads))
        return [_packed(product, flat) for product in self.loop.products]

    def backward(
        self,
        reads: Sequence[Any],
        combined: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        """The gradients of ``reads``, given those of the flat products and the combined results."""
        totals: list[Tensor | None] = [None] * len(reads)
        flat = iter(combined)
        results = [_packed(product, flat) if product.combined else None for product in self.loop.products]
        for offset in range(0, self.length, self.backward_tile):
            count = min(self.backward_tile, self.length - offset)
            self._add_tile(totals, reads, results, gradients, needs, offset, count)
        return [total.to(read.dtype) if total is not None else None for total, read in zip(totals, reads, strict=True)]

    def _add_tile(
        self,
        totals: list[Tensor | None],
        reads: Sequence[Any],
        results: Sequence[Any],
        gradients: Sequence[Tensor | None],
        needs: Sequence[bool],
        offset: int,
        count: int,
    ) -> None:
        inputs = [
            given.detach().requires_grad_(need) if isinstance(given, Tensor) else given
            for given, need in zip(self.loop.arguments(reads, offset, count), (*needs, False, False), strict=False)
        ]
        with torch.enable_grad(), without_saved_tensor_hooks(), below_autocast():
            parts = self.loop.body(*inputs)
            values, given = self._pairs(parts, results, gradients, offset, count)
        wanted = [tensor for tensor, need in zip(inputs, needs, strict=False) if need]
        if not values:
            return
        gradients_of_wanted = iter(torch.autograd.grad(values, wanted, given, allow_unused=True))
        del parts, values, given
        for i, need in enumerate(needs):
            gradient = next(gradients_of_wanted) if need else None
            if gradient is not None:
                totals[i] = self._added(totals[i], gradient, reads[i], i, offset, count)

    def _pairs(
        self, parts: Any, results: Sequence[Any], gradients: Sequence[Tensor | None], offset: int, count: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors of the tile that have a gradient, with that gradient."""
        values, given, at = [], [], 0
        for product, part, result in zip(self.loop.products, parts, results, strict=True):
            combiner = (
                COMBINERS[product.node.target](product.node, product.dim, self.length) if product.combined else None
            )
            width = len(_tensors(product.node.meta["val"]))
            for tensor, gradient in zip(_tensors(part), gradients[at : at + width], strict=False):
                if gradient is None or not tensor.requires_grad:
                    continue
                if combiner is None:
                    gradient = gradient.narrow(product.dim, offset, count)
                else:
                    gradient = gradient.to(tensor.dtype)
                    if combiner.reads_result:
                        replace_saved(tensor, "result", result.to(tensor.dtype))
                    with torch.no_grad():
                        gradient = combiner.part_gradient(part, result, gradient, offset, count)
                values.append(tensor)
                given.append(gradient.to(tensor.dtype))
            at += width
        return values, given

    def _added(
        self, total: Tensor | None, gradient: Tensor, read: Tensor, position: int, offset: int, count: int
    ) -> Tensor:
        if position < len(self.loop.sliced):
            total = torch.zeros_like(read) if total is None else total
            total.narrow(self.loop.sliced[position].dim, offset, count).copy_(gradient)
            return total
        if total is None:
            return gradient.to(torch.promote_types(gradient.dtype, torch.float32), copy=True)
        return total.add_(gradient)


def _tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for t in result if isinstance(t, Tensor)]


def _packed(product: Product, flat: Any) -> Any:
    """The product's results taken from ``flat``, as its node gives them."""
    results = product.node.meta["val"]
    return next(flat) if isinstance(results, Tensor) else tuple(next(flat) for _ in _tensors(results))
