"""The figures of a device that the roofline model needs, and those of GPUs from their makers' data sheets.

Of the sheets: dense rates (they often print those with sparsity, which are twice as high), matrix units with float32
accumulation where the sheet tells them apart, boost clocks. ``float32`` is the rate of the ordinary cores; ``tf32``,
where the card has it, is what convolutions in float32 use by default (``torch.backends.cudnn.allow_tf32``).
"""

from __future__ import annotations

import bisect
import math
import re

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
    """The best that a device can do."""

    name: str
    source: str
    """Where the figures come from: the address of a data sheet, or "measured here"."""
    flops_per_s: dict[str, float]
    """By dtype: the fastest dense matrix product that gives results of float32 quality or of that dtype.
    ``tf32`` stands next to ``float32`` where convolutions in float32 may use it."""
    bandwidths: tuple[Bandwidth, ...]
    """By growing working set: one entry where caches are left out."""
    ceilings: dict[str, float] = {}
    """Elements (of the largest tensor) per second of kinds that reach neither of the two (``costs.CEILINGS``); empty
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


_NVIDIA = "https://www.nvidia.com"
_A100 = f"{_NVIDIA}/en-us/data-center/a100/"
_H100 = f"{_NVIDIA}/en-us/data-center/h100/"
_H200 = f"{_NVIDIA}/en-us/data-center/h200/"
_AMPERE = f"{_NVIDIA}/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_BLACKWELL = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_VOLTA = "https://images.nvidia.com/content/volta-architecture/pdf/volta-architecture-whitepaper.pdf"

_DTYPES_OF = {"half": ("float16", "bfloat16")}
# name: (GB/s, {dtype: TFLOP/s, dense}, source)
_TABLE: dict[str, tuple[float, dict[str, float], str]] = {
    "B200": (
        8000,
        {"float64": 37, "float32": 75, "tf32": 1125, "half": 2250, "int8": 4500},
        f"{_NVIDIA}/en-us/data-center/dgx-b200/",
    ),
    "H200": (4800, {"float64": 34, "float32": 67, "tf32": 494, "half": 989, "int8": 1979}, _H200),
    "H100": (3350, {"float64": 34, "float32": 67, "tf32": 494, "half": 989, "int8": 1979}, _H100),
    "H100-PCIe": (2000, {"float64": 26, "float32": 51, "tf32": 378, "half": 756, "int8": 1513}, _H100),
    "A100": (2039, {"float64": 9.7, "float32": 19.5, "tf32": 156, "half": 312, "int8": 624}, _A100),
    "A100-40GB": (1555, {"float64": 9.7, "float32": 19.5, "tf32": 156, "half": 312, "int8": 624}, _A100),
    "A100-PCIe": (1935, {"float64": 9.7, "float32": 19.5, "tf32": 156, "half": 312, "int8": 624}, _A100),
    "A30": (
        933,
        {"float64": 5.2, "float32": 10.3, "tf32": 82, "half": 165, "int8": 330},
        f"{_NVIDIA}/en-us/data-center/products/a30-gpu/",
    ),
    "A40": (696, {"float32": 37.4, "tf32": 74.8, "half": 149.7, "int8": 299.3}, f"{_NVIDIA}/en-us/data-center/a40/"),
    "A10": (
        600,
        {"float32": 31.2, "tf32": 62.5, "half": 125, "int8": 250},
        f"{_NVIDIA}/en-us/data-center/products/a10-gpu/",
    ),
    "L40S": (864, {"float32": 91.6, "tf32": 183, "half": 362, "int8": 733}, f"{_NVIDIA}/en-us/data-center/l40s/"),
    "L4": (300, {"float32": 30.3, "tf32": 60, "half": 121, "int8": 242}, f"{_NVIDIA}/en-us/data-center/l4/"),
    "T4": (320, {"float32": 8.1, "float16": 65, "int8": 130}, f"{_NVIDIA}/en-us/data-center/tesla-t4/"),
    "V100": (900, {"float64": 7.8, "float32": 15.7, "float16": 125}, _VOLTA),
    "V100-PCIe": (900, {"float64": 7.0, "float32": 14.0, "float16": 112}, _VOLTA),
    "RTX-A6000": (768, {"float32": 38.7, "tf32": 77.4, "half": 154.8, "int8": 309.7}, _AMPERE),
    "RTX-3090": (936, {"float32": 35.6, "tf32": 35.6, "half": 71, "int8": 284}, _AMPERE),
    "RTX-4090": (1008, {"float32": 82.6, "tf32": 82.6, "half": 165.2, "int8": 660.6}, _ADA),
    "RTX-5090": (1792, {"float32": 104.8, "tf32": 104.8, "half": 209.5, "int8": 838}, _BLACKWELL),
}


def gpu(name: str) -> Figures:
    """The figures of a GPU by name: ``A100``, ``rtx 4090``, ``NVIDIA H100 PCIe``. The most specific known name counts.

    Raises UnknownNameError with the known names.
    """
    words = _words(name)
    matches = [device for device in _TABLE if _plain(device) == _plain(name)]
    if "laptop" not in words:  # the same name, another chip
        fitting = [device for device in _TABLE if _words(device) <= words]
        matches += sorted(fitting, key=lambda device: -len(_words(device)))
    if not matches:
        raise UnknownNameError(
            f"there are no figures of a device '{name}'{nearest(name, _TABLE) or '.'} "
            f"Known are cpu (measured here), {', '.join(_TABLE)}."
        )
    bandwidth, rates, source = _TABLE[matches[0]]
    return Figures(
        name=matches[0],
        source=source,
        flops_per_s={dtype: rate * 1e12 for kind, rate in rates.items() for dtype in _DTYPES_OF.get(kind, (kind,))},
        bandwidths=(Bandwidth(working_set_bytes=1, bytes_per_s=bandwidth * 1e9),),
    )


def _words(name: str) -> set[str]:
    return set(re.findall("[a-z0-9]+", name.lower()))


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
