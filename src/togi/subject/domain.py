"""Domains: which values of an input an artifact takes, where it is not proven for all that the original takes.

Engines compute some values otherwise than torch: integers of 64 bits as 32, NaN as a number. What was proven is kept
with the signature, and a call beyond it is refused (``Signature.check``), since its answer could be wrong in silence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import model_validator

from togi.core.records import Record

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Number = int | float

_FOR_ONE_THREAD = 32768
"""Torch reduces fewer elements on the caller's thread alone (``at::internal::GRAIN_SIZE``). For more it wakes its other
threads, which then wait busily for milliseconds on cores that an engine's own threads need."""


class Domain(Record):
    """Values of one input tensor for which a program was proven. As it is made, it holds every value."""

    low: Number | None = None
    high: Number | None = None
    """Smallest and largest value, inclusive; None: no bound. NaN lies within no bounds."""
    constant: bool = True
    """All elements may be equal."""
    empty_rows: bool = True
    """Of a mask: a row along the last dimension may be all zero ..."""
    full_rows: bool = True
    """... or hold no zero."""

    @model_validator(mode="after")
    def _ordered(self) -> Domain:
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise ValueError(f"a domain from {self.low} to {self.high} holds nothing")
        return self

    @property
    def bounded(self) -> bool:
        return self.low is not None or self.high is not None

    @property
    def everything(self) -> bool:
        return self == Domain()

    def __and__(self, other: Domain) -> Domain:
        """The values that lie in both."""
        lows = [domain.low for domain in (self, other) if domain.low is not None]
        highs = [domain.high for domain in (self, other) if domain.high is not None]
        return Domain(
            low=max(lows, default=None),
            high=min(highs, default=None),
            constant=self.constant and other.constant,
            empty_rows=self.empty_rows and other.empty_rows,
            full_rows=self.full_rows and other.full_rows,
        )

    def refusal(self, tensor: Tensor) -> str:
        """The values outside, in words that follow the input's name; empty where there are none.

        One pass over the tensor, two where rows count. An empty tensor lies inside.
        """
        return self._refusal(tensor, _extremes(tensor) if self._extremes_count(tensor) else None)

    def _extremes_count(self, tensor: Tensor) -> bool:
        return (self.bounded or not self.constant) and tensor.numel() > 0

    def _refusal(self, tensor: Tensor, extremes: tuple[Number, Number] | None) -> str:
        """``extremes``: the smallest and largest element, of a tensor of which they count."""
        if not tensor.numel():
            return ""
        if extremes is not None:
            low, high = extremes
            if self.bounded and not low <= high:
                return f"holds NaN, but was proven for {self._bounds()}"
            if self.low is not None and low < self.low:
                return f"holds {_said(low)}, but was proven for {self._bounds()}"
            if self.high is not None and high > self.high:
                return f"holds {_said(high)}, but was proven for {self._bounds()}"
            if not self.constant and low == high and tensor.numel() > 1:
                return f"holds {_said(low)} alone, but was not proven for tensors of one value"
        return self._refusal_of_rows(tensor)

    def _refusal_of_rows(self, tensor: Tensor) -> str:
        rows = [] if self.empty_rows and self.full_rows else _pieces(tensor, tensor.dim() - 1)
        if not self.empty_rows and not all(bool(piece.any(-1).all()) for piece in rows):
            return "has a row of zeros alone, which was not proven"
        if not self.full_rows and any(bool(piece.all(-1).any()) for piece in rows):
            return "has a row without a zero, which was not proven"
        return ""

    def words(self, name: str) -> list[str]:
        """Its demands on an input of this name, in words."""
        return [
            *([f"{name} holds {self._bounds()}"] if self.bounded else []),
            *([] if self.constant else [f"{name} holds more than one value"]),
            *([] if self.empty_rows else [f"no row of {name} is all zero"]),
            *([] if self.full_rows else [f"each row of {name} has a zero"]),
        ]

    def _bounds(self) -> str:
        if self.low is None:
            return f"values up to {_said(self.high)}"  # one of them is a bound
        if self.high is None:
            return f"values from {_said(self.low)}"
        return f"values from {_said(self.low)} to {_said(self.high)}"


def refusals_on_device(asked: Sequence[tuple[Domain, Tensor]]) -> list[str]:
    """``Domain.refusal`` of each. Those on one device are looked at together, since each look waits for all that the
    device was given to do; those on the CPU each by itself."""
    counting = [at for at, (domain, tensor) in enumerate(asked) if domain._extremes_count(tensor)]
    by_device: dict[torch.device, list[int]] = {}
    for at in counting:
        by_device.setdefault(asked[at][1].device, []).append(at)
    extremes: dict[int, tuple[Number, Number]] = {}
    for device, places in by_device.items():
        tensors = [asked[at][1].detach() for at in places]
        found = map(_extremes, tensors) if device.type == "cpu" else extremes_together(tensors)
        extremes |= zip(places, found, strict=True)
    return [domain._refusal(tensor, extremes.get(at)) for at, (domain, tensor) in enumerate(asked)]


def extremes_together(tensors: Sequence[Tensor]) -> list[tuple[Number, Number]]:
    """Smallest and largest element of each, NaN where one is, fetched from their one device once for integers and once
    for others."""
    import torch

    found: list[tuple[Number, Number]] = [(0, 0)] * len(tensors)
    for dtype, floats in ((torch.int64, False), (torch.float64, True)):
        places = [at for at, tensor in enumerate(tensors) if tensor.is_floating_point() is floats]
        if places:
            bounds = [bound.to(dtype) for at in places for bound in tensors[at].aminmax()]
            fetched = torch.stack(bounds).view(-1, 2).tolist()
            for at, (low, high) in zip(places, fetched, strict=True):
                found[at] = (low, high)
    return found


def _extremes(tensor: Tensor) -> tuple[Number, Number]:
    """Smallest and largest element; NaN where one is."""
    if tensor.numel() < _FOR_ONE_THREAD:
        low, high = tensor.aminmax()
        return low.item(), high.item()
    if tensor.device.type == "cpu" and tensor.element_size() != 2:
        # no threads at all, in a fifth of the time; not for types of 16 bits
        numbers = tensor.detach().resolve_neg().numpy()
        return numbers.min().item(), numbers.max().item()
    of_pieces = [[bound.item() for bound in piece.aminmax()] for piece in _pieces(tensor, tensor.dim())]
    if any(low != low for low, _ in of_pieces):
        return math.nan, math.nan
    return min(low for low, _ in of_pieces), max(high for _, high in of_pieces)


def _pieces(tensor: Tensor, dims: int) -> list[Tensor]:
    """The tensor, cut along its first ``dims`` dimensions where it is large enough for torch to wake its threads."""
    sizes = tensor.shape[:dims]
    if tensor.device.type != "cpu" or tensor.numel() < _FOR_ONE_THREAD or max(sizes, default=1) == 1:
        return [tensor]
    longest = list(sizes).index(max(sizes))
    step = max(1, sizes[longest] // math.ceil(tensor.numel() / (_FOR_ONE_THREAD - 1)))
    pieces = tensor.chunk(math.ceil(sizes[longest] / step), longest)
    return [small for piece in pieces for small in _pieces(piece, dims)]


def _said(number: Number | None) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.4g}"
