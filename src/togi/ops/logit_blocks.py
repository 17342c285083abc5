"""Blocks of logits: some rows and some of the vocabulary at a time, in memory that every block uses again."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from togi.ops.measures import compute_dtype

_NARROWEST = 512
"""Columns at least, where memory allows: narrower blocks leave a matrix multiplication idle."""


class LogitBlocks:
    """All logits of hidden [N, D] with weight [V, D], a block at a time: every block overwrites the one before."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, memory_bytes: int) -> None:
        self.hidden, self.weight, self.bias = hidden, weight, bias
        self.sum_dtype = compute_dtype(hidden.dtype)
        self._is_direct = hidden.dtype == self.sum_dtype
        count, vocabulary = len(hidden), len(weight)
        # In half precision: float32, the logits, and what their product takes for itself. That is float32 again where
        # the processor has no instructions for the dtype (oneDNN sums in a buffer of the size of the result).
        bytes_each = self.sum_dtype.itemsize * (1 if self._is_direct else 2)
        bytes_each += 0 if self._is_direct else hidden.dtype.itemsize
        most = max(1, min(memory_bytes // bytes_each, count * vocabulary))
        self.width = min(vocabulary, most, max(most // max(1, count), _NARROWEST))
        self.height = max(1, min(count, most // max(1, self.width)))
        self._work = hidden.new_empty(self.height * self.width, dtype=self.sum_dtype)
        self._logits = self._work if self._is_direct else hidden.new_empty(self._work.shape)

    def columns(self) -> Iterator[slice]:
        """Parts of the vocabulary; none where there are no rows."""
        return _parts(len(self.weight) if len(self.hidden) else 0, self.width)

    def rows(self) -> Iterator[slice]:
        return _parts(len(self.hidden), self.height)

    def logits(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """The logits of a block in the dtype of hidden, and a block in ``sum_dtype`` to work in: the same tensor where
        these are one dtype."""
        hidden, transposed = self.hidden[rows], self.weight[columns].T
        shape = (len(hidden), transposed.shape[1])
        size = shape[0] * shape[1]
        logits = self._logits[:size].view(shape)
        work = logits if self._is_direct else self._work[:size].view(shape)
        if self.bias is None:
            torch.mm(hidden, transposed, out=logits)
        else:
            torch.addmm(self.bias[columns], hidden, transposed, out=logits)
        return logits, work

    @staticmethod
    def widened(logits: Tensor, work: Tensor) -> Tensor:
        """``work``, with the values of ``logits``. (An operation on two dtypes makes a third tensor of that size.)"""
        return work if work is logits else work.copy_(logits)

    def sum_over_rows(self, result: Tensor) -> Tensor:
        """The tensor in which to sum what becomes ``result``: itself, where it is not rounded between blocks."""
        whole = self._is_direct or self.height == len(self.hidden)
        return result if whole else torch.zeros_like(result, dtype=self.sum_dtype)

    def sum_over_columns(self, result: Tensor) -> Tensor:
        """The same for what every part of the vocabulary adds to."""
        whole = self._is_direct or self.width == len(self.weight)
        return result if whole else torch.zeros_like(result, dtype=self.sum_dtype)


def add_product(total: Tensor, first: Tensor, second: Tensor) -> None:
    """``total += first @ second``, without a product of its own where the dtypes allow it."""
    if total.dtype == first.dtype:
        total.addmm_(first, second)
    else:
        total += first @ second


def _parts(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, max(1, size)))
