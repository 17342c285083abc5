"""Results without a copy: the graph's own memory, until a block ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from togi.torch_internals.tensors import borrowed, take_back

_OVER = (
    "this is a result of a CUDA graph that was lent (togi.graphs, lend), and its block has ended: the next call "
    "overwrites it. Use it inside the block, clone it there, or call the function itself, which copies"
)


class Lease:
    """A block in which results are lent, by ``CapturedFunction.lend``: ``with fast.lend(x) as out``."""

    def __init__(self, answer: Callable[[Lease], Any]) -> None:
        self._answer = answer
        self._tensors: list[Tensor] = []

    @property
    def lasts(self) -> bool:
        """Memory of the function is lent, so that no call may write there."""
        return bool(self._tensors)

    def take(self, results: Sequence[Tensor]) -> list[Tensor]:
        """These as tensors that end with the block."""
        self._tensors = [borrowed(tensor) for tensor in results]
        return list(self._tensors)

    def __enter__(self) -> Any:
        return self._answer(self)

    def __exit__(self, *_: object) -> None:
        for tensor in self._tensors:
            take_back(tensor, _OVER)
        self._tensors.clear()
