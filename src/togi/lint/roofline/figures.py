"""The figures of a device that the roofline model needs."""

from __future__ import annotations

import bisect
import math

from togi.core.errors import UnknownNameError, nearest
from togi.core.records import Record

DTYPES = ("float64", "float32", "float16", "bfloat16", "int8")
"""Those of which costs can be predicted."""


def check_dtype(name: str) -> None:
    """Raises UnknownNameError, with the nearest name, where costs cannot be predicted for a dtype."""
    if name not in DTYPES:
        raise UnknownNameError(
            f"costs cannot be predicted for dtype '{name}'{nearest(name, DTYPES) or '.'} Known are {', '.join(DTYPES)}."
        )


class Bandwidth(Record):
    """Bytes read and written per second by an operation that touches ``working_set_bytes``."""

    working_set_bytes: int
    bytes_per_s: float


class Figures(Record):
    """What a device can do at best."""

    name: str
    source: str
    """Where the figures come from: the address of a data sheet, or "measured here"."""
    flops_per_s: dict[str, float]
    """By dtype: the fastest dense matrix product that gives results of float32 quality or of that dtype.
    ``tf32`` stands beside ``float32`` where convolutions in float32 may use it."""
    bandwidths: tuple[Bandwidth, ...]
    """By growing working set: one entry where caches are left out."""
    ceilings: dict[str, float] = {}
    """Elements (of the largest tensor) per second of kinds that reach neither of the two (``work.CEILINGS``); empty
    where not measured."""
    call_s: float = 0.0
    """What one operation costs however small it is; 0 where it is not known."""
    product_call_s: float = 0.0
    """The same of a matrix product or convolution."""
    measured: bool = False
    steady: bool = True
    """False: the measurement was disturbed, and the device can probably do more."""

    def peak(self, dtype: str, *, convolution: bool = False) -> float:
        """FLOP/s for ``dtype``; of a dtype that is not listed, that of float32 (it is computed in that)."""
        if convolution and dtype == "float32" and "tf32" in self.flops_per_s:
            return self.flops_per_s["tf32"]
        return self.flops_per_s.get(dtype, self.flops_per_s["float32"])

    def bandwidth(self, working_set_bytes: float) -> float:
        """Bytes/s, interpolated between the sizes that are known (both axes logarithmic)."""
        sizes = [entry.working_set_bytes for entry in self.bandwidths]
        place = bisect.bisect_left(sizes, working_set_bytes)
        if place == 0 or place == len(sizes):
            return self.bandwidths[min(place, len(sizes) - 1)].bytes_per_s
        low, high = self.bandwidths[place - 1], self.bandwidths[place]
        share = math.log(working_set_bytes / low.working_set_bytes) / math.log(
            high.working_set_bytes / low.working_set_bytes
        )
        return math.exp((1 - share) * math.log(low.bytes_per_s) + share * math.log(high.bytes_per_s))

    @property
    def balance(self) -> float:
        """FLOP per byte above which a float32 matrix product is bound by arithmetic, out of main memory."""
        return self.peak("float32") / self.bandwidths[-1].bytes_per_s
