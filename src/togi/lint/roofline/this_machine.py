"""Figures of the processor (or GPU) here, measured in a second or two and kept for the next time.

Bandwidth: ``torch.add(a, b, out=c)`` over working sets from a quarter of a MiB to 256 MiB, as STREAM does (J. D.
McCalpin, "Memory bandwidth and machine balance in current high performance computers", 1995). Arithmetic: a square
matrix product at the thread count in force. Some kinds of operations (depthwise convolutions, norms, pools, special
functions) reach neither roof on a processor: each has a ceiling of its own, measured on one size (ceilings: Williams et
al., section 4). The fastest of several tries counts, since a disturbance only adds time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

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
    measured_dtypes = sorted({"float32", *dtypes} & {"float32", "float64", "float16", "bfloat16"})
    file = _file(device, machine, measured_dtypes)
    figures = _kept(file)
    if figures is None:
        figures = measure(device, machine, measured_dtypes)
        if figures.steady:
            _keep(file, figures)
    return figures


def measure(device: str, machine: Machine, dtypes: Sequence[str]) -> Figures:
    """Measure now. Takes about a second, and a tenth of a second more for each dtype.

    The probes take turns, so that a neighbour's burst does not spoil all tries of one of them.
    """
    with torch.inference_mode():
        products = [_product(device, getattr(torch, dtype)) for dtype in dtypes]
        sums = [_sum(device, size) for size in _SETS_BYTES]
        weight = torch.ones(4, 4, 1, 1, device=device)
        call = _of_ones(device, 1, (16,), torch.relu)
        product_call = _of_ones(device, 1, (1, 4, 2, 2), lambda x: functional.conv2d(x, weight))
        kinds = _kinds(device)
        everything = [*products, *sums, call, product_call, *kinds.values()]
        for _ in range(_ROUNDS):
            for probe in everything:
                probe.try_for(_EACH_S)
    return Figures(
        name=machine.gpu or device if device.startswith("cuda") else f"{machine.cpu_model}, {_threads()} threads",
        source="measured here",
        flops_per_s={dtype: probe.rate for dtype, probe in zip(dtypes, products, strict=True)},
        bandwidths=tuple(
            # A smaller working set is never slower: where it looks so, threads stood in each other's way.
            Bandwidth(working_set_bytes=size, bytes_per_s=max(probe.rate for probe in sums[place:]))
            for place, size in enumerate(_SETS_BYTES)
        ),
        ceilings={name: probe.rate for name, probe in kinds.items()},
        call_s=1.0 / call.rate,
        product_call_s=1.0 / product_call.rate,
        measured=True,
        steady=all(probe.steady for probe in everything),
    )


def _threads() -> int:
    return torch.get_num_threads()


class _Probe:
    """Something to time: ``amount`` of it (bytes, operations, calls) in one run."""

    def __init__(self, device: str, amount: float, run: Callable[[], object]) -> None:
        self._on_gpu = device.startswith("cuda")
        self._run = run
        self._amount = amount
        self._rounds_s: list[float] = []
        """The fastest run of each round."""

    def try_for(self, seconds: float) -> None:
        self._run()
        spread_threads()
        self._timed_s()
        times: list[float] = []
        while len(times) < _LEAST_TRIES or sum(times) < seconds:
            times.append(self._timed_s())
        self._rounds_s.append(min(times))

    def _timed_s(self) -> float:
        began = time.perf_counter()
        self._run()
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    @property
    def rate(self) -> float:
        """Amount per second, of the fastest run."""
        return self._amount / min(self._rounds_s)

    @property
    def steady(self) -> bool:
        return statistics.median(self._rounds_s) < _STEADY_X * min(self._rounds_s)


def _sum(device: str, working_set_bytes: int) -> _Probe:
    elements = working_set_bytes // (3 * 4)
    a, b, total = (torch.ones(elements, device=device) for _ in range(3))
    return _Probe(device, 3 * 4 * elements, lambda: torch.add(a, b, out=total))


def _product(device: str, dtype: torch.dtype) -> _Probe:
    size = _PRODUCT if device == "cpu" else 8 * _PRODUCT
    a, b, product = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(3))
    return _Probe(device, 2.0 * size**3, lambda: torch.mm(a, b, out=product))


def _of_ones(device: str, amount: float, shape: Sequence[int], function: Callable[[torch.Tensor], object]) -> _Probe:
    ones = torch.ones(*shape, device=device)
    return _Probe(device, amount, lambda: function(ones))


def _kinds(device: str) -> dict[str, _Probe]:
    """One probe for each kind of ``costs.CEILINGS``, at sizes that layers have: 64 channels of 56 x 56."""
    channels, size = 64, 56
    picture, elements = (1, channels, size, size), channels * size * size
    ones, taps = torch.ones(channels, device=device), torch.ones(channels, 1, 5, 5, device=device)
    probes: dict[str, tuple[Sequence[int], Callable[[torch.Tensor], object]]] = {
        "depthwise": (picture, lambda x: functional.conv2d(x, taps, padding=2, groups=channels)),
        "special": ((elements,), functional.gelu),
        "norm": ((elements // 256, 256), lambda x: functional.layer_norm(x, (256,))),
        "batch norm": (picture, lambda x: functional.batch_norm(x, ones, ones, ones, ones)),
        "pool": (picture, lambda x: functional.max_pool2d(x, 3, 2, 1)),
    }
    return {name: _of_ones(device, elements, shape, function) for name, (shape, function) in probes.items()}


def _file(device: str, machine: Machine, dtypes: Sequence[str]) -> Path:
    identity = [_FORMAT, device, machine.cpu_model, machine.gpu, _threads(), torch.__version__, *dtypes]
    name = hashlib.sha256(json.dumps([str(item) for item in identity]).encode()).hexdigest()[:16]
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
