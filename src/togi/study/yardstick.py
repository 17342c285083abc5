"""A fixed piece of work that a speed is given in, where there is nothing else to compare with: of a baseline.

Milliseconds of two runs are not compared, because a machine's clock and its neighbours change them by more than a
change of the code does. Whatever slows down the machine slows down the yardstick in the same rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NAME = "the yardstick, version 1"
"""A number of its own for each change of the work: speeds in another yardstick are not compared."""
_SIZE = 256
_NUMBERS = 1 << 20
_SMALL = 64
"""Operations on few numbers: what Python and the dispatcher cost."""


class Yardstick:
    """Some milliseconds of what models do: matrix products, a pass over memory, and many small operations."""

    def __init__(self, device: str) -> None:
        import torch  # where the result of another process is only read, there may be none

        generator = torch.Generator().manual_seed(0)
        self._matrix = (torch.rand(_SIZE, _SIZE, generator=generator) / _SIZE).to(device)
        self._numbers = torch.rand(_NUMBERS, generator=generator).to(device)
        self._few = torch.rand(8, generator=generator).to(device)

    def __call__(self) -> Tensor:
        product = self._matrix
        for _ in range(4):
            product = product @ self._matrix
        few = self._few
        for _ in range(_SMALL):
            few = few + 1
        return product.sum() + (self._numbers * 2).sum() + few.sum()
