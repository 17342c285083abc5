"""The form of calls and results: which dimensions are the size, and memory that calls of all sizes share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from togi.torch_internals.tensors import tensors_of, tree_unflatten

Shape = tuple[int | None, ...]
"""None where a dimension is the size of the call."""


_MOST_KEPT = 1000
"""Sizes whose views are kept: some kilobytes each."""


class SharedTensors:
    """The tensors of all calls (or results): shapes by size, and one buffer each that all sizes share.

    Views of them are made once for each size and bucket: a replay of a small model takes less time than making them.
    """

    def __init__(self, shapes: Sequence[Shape], like: Sequence[Tensor]) -> None:
        self.shapes, self._like = shapes, like
        self._memory: list[Tensor] = []
        self._views: dict[int, tuple[Tensor, ...]] = {}
        self._kept: dict[tuple[int, int], tuple[_Slices, ...]] = {}

    def allocate(self, largest: int) -> int:
        """Room for sizes up to ``largest``; bytes."""
        self._views.clear()
        self._kept.clear()
        self._memory = [
            torch.empty(_numel(shape, largest), dtype=like.dtype, device=like.device)
            for shape, like in zip(self.shapes, self._like, strict=True)
        ]
        return sum(memory.nbytes for memory in self._memory)

    def views(self, bucket: int) -> tuple[Tensor, ...]:
        if bucket not in self._views:
            with _plain_tensors():
                self._views[bucket] = tuple(
                    memory[: _numel(shape, bucket)].view(shape_at(shape, bucket))
                    for shape, memory in zip(self.shapes, self._memory, strict=True)
                )
        return self._views[bucket]

    def write(self, tensors: Sequence[Tensor | None], n: int, bucket: int, pads: Sequence[float]) -> None:
        """A call's, and what pads them to the bucket; None where there is nothing to write."""
        for part, tensor, pad in zip(self._slices_of(n, bucket), tensors, pads, strict=True):
            if tensor is not None:
                for padded in part.padding:
                    padded.fill_(pad)
                part.real.copy_(tensor)

    def read(self, n: int, bucket: int) -> list[Tensor]:
        """The part of each that a call of size ``n`` has, in the shared memory."""
        return [part.real for part in self._slices_of(n, bucket)]

    def _slices_of(self, n: int, bucket: int) -> tuple[_Slices, ...]:
        if (n, bucket) not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            with _plain_tensors():
                pairs = zip(self.views(bucket), self.shapes, strict=True)
                self._kept[n, bucket] = tuple(_slices(view, shape, n, bucket) for view, shape in pairs)
        return self._kept[n, bucket]


@dataclass(frozen=True)
class _Slices:
    """Of one shared tensor: what a call has of it, and what is padded."""

    real: Tensor
    padding: tuple[Tensor, ...]


def _slices(tensor: Tensor, shape: Shape, n: int, bucket: int) -> _Slices:
    real, padding = tensor, []
    for dim, extent in enumerate(shape):
        if extent is None:
            real = real.narrow(dim, 0, n)
            padding += [tensor.narrow(dim, n, bucket - n)] if n < bucket else []
    return _Slices(real, tuple(padding))


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """What is kept is used by calls in every mode: views of inference mode could not be written to in another."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def shape_at(shape: Shape, n: int) -> tuple[int, ...]:
    return tuple(n if extent is None else extent for extent in shape)


def _numel(shape: Shape, n: int) -> int:
    return torch.Size(shape_at(shape, n)).numel()


def shapes_of(rows: Sequence[Sequence[Tensor]]) -> list[Shape]:
    """Find the shape of each tensor, None in the dimensions in which the calls differ."""
    return [
        tuple(
            extents[0] if len(set(extents)) == 1 else None for extents in zip(*(t.shape for t in column), strict=True)
        )
        for column in zip(*rows, strict=True)
    ]


def size_of(tensors: Sequence[Tensor], shapes: Sequence[Shape]) -> int | None:
    """The number in every dimension that varies; None where these differ, or another dimension does."""
    sizes: set[int] = set()
    for tensor, shape in zip(tensors, shapes, strict=True):
        for extent, expected in zip(tensor.shape, shape, strict=True):
            if expected is None:
                sizes.add(extent)
            elif extent != expected:
                return None
    return sizes.pop() if len(sizes) == 1 else None


def same_values(left_values: Sequence[Any], right_values: Sequence[Any]) -> bool:
    return len(left_values) == len(right_values) and all(
        a is b or (type(a) is type(b) and bool(a == b)) for a, b in zip(left_values, right_values, strict=True)
    )


def tensors_in(result: Any) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors_of(result)]


_TENSOR = object()
"""Stands for a tensor among the leaves of a call."""


def without_tensors(leaves: Sequence[Any]) -> list[Any]:
    """The leaves with a mark in the place of each tensor, for ``with_tensors``."""
    return [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def with_tensors(leaves: Sequence[Any], tensors: Iterable[Tensor], form: Any) -> Any:
    """The structure again, of what ``without_tensors`` left and of tensors in order."""
    remaining = iter(tensors)
    return tree_unflatten([next(remaining) if leaf is _TENSOR else leaf for leaf in leaves], form)
