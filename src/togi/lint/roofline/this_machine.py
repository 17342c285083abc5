"""Figures of the processor (or GPU) here, measured in a second or two and kept for the next time.

Bandwidth: ``torch.add(a, b, out=c)`` over working sets from a quarter of a MiB to 256 MiB, as STREAM does (J. D.
McCalpin, "Memory bandwidth and machine balance in current high performance computers", 1995). Arithmetic: a square
matrix product at the thread count in force. Some kinds of operations (depthwise convolutions, norms, pools, special
functions) reach neither roof on a processor: each has a ceiling of its own, measured on one size (ceilings: Williams et
al., section 4). The fastest of several tries counts, since a disturbance only adds time.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch.nn import functional

from togi.core.caches import cache_folder, check_own, private
from togi.core.plain_files import read_plain
from togi.core.records import Machine
from togi.lint.roofline.devices import Bandwidth, Figures
from togi.measure.threads import spread_threads

_SETS_BYTES = tuple(2**power for power in (18, 20, 22, 24, 26, 28))
_EACH_S = 0.02
_LEAST_TRIES = 2
_ROUNDS = 5
_STEADY_X = 1.25
"""A probe whose usual round is slower than its fastest by more had company."""
_PRODUCT = 1024
_FORMAT = 5
"""Raised when the measurement changes, so that figures kept by an older version are not used."""


def figures_here(device: str, machine: Machine, dtypes: Sequence[str] = ("float32",)) -> Figures:
    """The figures of ``device`` (``cpu``, ``cuda``) for these floating dtypes; float32 is always among them.

    Kept in the user's cache folder, by processor, threads, torch and dtypes; where that cannot be written, or
    neighbours disturbed the measurement, it is measured again the next time.
    """
    wanted = sorted({"float32", *dtypes} & {"float32", "float64", "float16", "bfloat16"})
    file = _file(device, machine, wanted)
    kept = _kept(file)
    if kept is None:
        kept = measure(device, machine, wanted)
        if kept.steady:
            _keep(file, kept)
    return kept


def measure(device: str, machine: Machine, dtypes: Sequence[str]) -> Figures:
    """Measure now. Takes about a second, and a tenth of a second more for each dtype.

    The probes take turns, so that a neighbour's burst does not spoil all tries of one of them.
    """
    with torch.inference_mode():
        probes = [_Product(device, getattr(torch, dtype)) for dtype in dtypes]
        sums = [_Sum(device, size) for size in _SETS_BYTES]
        calls = [_Kind(device, 1, 16, torch.relu), _Kind(device, 1, 16, _tiny_convolution(device), shape=(1, 4, 2, 2))]
        kinds = _kinds(device)
        everything: list[_Probe] = [*probes, *sums, *calls, *kinds.values()]
        for _ in range(_ROUNDS):
            for probe in everything:
                probe.try_for(_EACH_S)
    return Figures(
        name=machine.gpu or device if device.startswith("cuda") else f"{machine.cpu_model}, {_threads()} threads",
        source="measured here",
        flops_per_s={dtype: probe.rate for dtype, probe in zip(dtypes, probes, strict=True)},
        bandwidths=tuple(
            # A smaller working set is never slower: where it looks so, threads stood in each other's way.
            Bandwidth(working_set_bytes=size, bytes_per_s=max(probe.rate for probe in sums[place:]))
            for place, size in enumerate(_SETS_BYTES)
        ),
        ceilings={name: probe.rate for name, probe in kinds.items()},
        call_s=1.0 / calls[0].rate,
        product_call_s=1.0 / calls[1].rate,
        measured=True,
        steady=all(probe.steady for probe in everything),
    )


def _nothing() -> None:
    """What the processor has to be waited for."""


def _threads() -> int:
    return torch.get_num_threads()


class _Probe(abc.ABC):
    """Something to time: ``amount`` of it (bytes, operations, calls) in one run."""

    def __init__(self, device: str, amount: float) -> None:
        self.synchronize: Callable[[], object] = torch.cuda.synchronize if device.startswith("cuda") else _nothing
        self.amount = amount
        self.rounds_s: list[float] = []
        """The fastest run of each round."""

    @abc.abstractmethod
    def run(self) -> None: ...

    def try_for(self, seconds: float) -> None:
        self.run()
        spread_threads()
        self.run()
        self.synchronize()
        times: list[float] = []
        while len(times) < _LEAST_TRIES or sum(times) < seconds:
            began = time.perf_counter()
            self.run()
            self.synchronize()
            times.append(time.perf_counter() - began)
        self.rounds_s.append(min(times))

    @property
    def rate(self) -> float:
        """Amount per second, of the fastest run."""
        return self.amount / min(self.rounds_s)

    @property
    def steady(self) -> bool:
        return statistics.median(self.rounds_s) < _STEADY_X * min(self.rounds_s)


class _Sum(_Probe):
    def __init__(self, device: str, working_set_bytes: int) -> None:
        elements = working_set_bytes // (3 * 4)
        super().__init__(device, 3 * 4 * elements)
        self.a, self.b, self.c = (torch.ones(elements, device=device) for _ in range(3))

    def run(self) -> None:
        torch.add(self.a, self.b, out=self.c)


class _Product(_Probe):
    def __init__(self, device: str, dtype: torch.dtype) -> None:
        size = _PRODUCT if device == "cpu" else 8 * _PRODUCT
        super().__init__(device, 2.0 * size**3)
        self.a, self.b, self.c = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(3))

    def run(self) -> None:
        torch.mm(self.a, self.b, out=self.c)


class _Kind(_Probe):
    """A function of one tensor of ones."""

    def __init__(
        self,
        device: str,
        amount: float,
        elements: int,
        function: Callable[[torch.Tensor], object],
        *,
        shape: Any = None,
    ) -> None:
        super().__init__(device, amount)
        self.function = function
        self.a = torch.ones(elements, device=device).reshape(shape or (elements,))

    def run(self) -> None:
        self.function(self.a)


def _tiny_convolution(device: str) -> Callable[[torch.Tensor], object]:
    weight = torch.ones(4, 4, 1, 1, device=device)
    return lambda x: functional.conv2d(x, weight)


def _kinds(device: str) -> dict[str, _Probe]:
    """One probe for each kind of ``costs.CEILINGS``, at sizes that layers have: 64 channels of 56 x 56."""
    channels, size = 64, 56
    shape, elements = (1, channels, size, size), channels * size * size
    each, taps = torch.ones(channels, device=device), torch.ones(channels, 1, 5, 5, device=device)
    tokens = (elements // 256, 256)
    return {
        "depthwise": _Kind(
            device,
            elements,
            elements,
            lambda x: functional.conv2d(x, taps, padding=2, groups=channels),
            shape=shape,
        ),
        "special": _Kind(device, elements, elements, functional.gelu),
        "norm": _Kind(device, elements, elements, lambda x: functional.layer_norm(x, (256,)), shape=tokens),
        "batch norm": _Kind(
            device, elements, elements, lambda x: functional.batch_norm(x, each, each, each, each), shape=shape
        ),
        "pool": _Kind(device, elements, elements, lambda x: functional.max_pool2d(x, 3, 2, 1), shape=shape),
    }


def _file(device: str, machine: Machine, dtypes: Sequence[str]) -> Path:
    what = [_FORMAT, device, machine.cpu_model, machine.gpu, _threads(), torch.__version__, *dtypes]
    name = hashlib.sha256(json.dumps([str(item) for item in what]).encode()).hexdigest()[:16]
    return cache_folder() / f"figures-{name}.json"


_LARGEST_BYTES = 1_000_000


def _kept(file: Path) -> Figures | None:
    try:
        check_own(private(file.parent) / file.name)
        return Figures.from_json(read_plain(file, _LARGEST_BYTES))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None  # never measured, or damaged: measured again


def _keep(file: Path, figures: Figures) -> None:
    """Written under another name and renamed, so that two processes at once cannot leave half a file."""
    beside = file.with_suffix(f".{os.getpid()}")
    try:
        private(file.parent)
        beside.write_text(figures.to_json(), encoding="utf-8")
        beside.replace(file)
    except OSError:  # a read-only home: the next run measures again
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
