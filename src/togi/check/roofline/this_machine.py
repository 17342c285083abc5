"""Figures of the processor (or GPU) here, measured in a second or two and kept for the next time.

Bandwidth: ``torch.add(a, b, out=c)`` over working sets from a quarter of a MiB to 256 MiB, as STREAM does (J. D.
McCalpin, "Memory bandwidth and machine balance in current high performance computers", 1995). Arithmetic: a square
matrix product at the thread count in force. The fastest of several tries counts, since a disturbance only adds time.
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

import torch
from pydantic import ValidationError

from togi.check.roofline.figures import Bandwidth, Figures
from togi.measure.threads import spread_threads
from togi.records import Machine

_SETS_BYTES = tuple(2**power for power in (18, 20, 22, 24, 26, 28))
_EACH_S = 0.02
_LEAST_TRIES = 2
_ROUNDS = 5
_STEADY_X = 1.25
"""A probe whose usual round is slower than its fastest by more had company."""
_PRODUCT = 1024
_FORMAT = 2
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
        tiny = _Tiny(device)
        everything: list[_Probe] = [*probes, *sums, tiny]
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
        call_s=1.0 / tiny.rate,
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


class _Tiny(_Probe):
    """An operation that is nothing but the cost of calling it."""

    def __init__(self, device: str) -> None:
        super().__init__(device, 100)
        self.a = torch.ones(16, device=device)

    def run(self) -> None:
        for _ in range(int(self.amount)):
            torch.relu(self.a)


def _file(device: str, machine: Machine, dtypes: Sequence[str]) -> Path:
    what = [_FORMAT, device, machine.cpu_model, machine.gpu, _threads(), torch.__version__, *dtypes]
    name = hashlib.sha256(json.dumps([str(item) for item in what]).encode()).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "togi" / f"figures-{name}.json"


def _kept(file: Path) -> Figures | None:
    try:
        return Figures.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None  # never measured, or damaged: measured again


def _keep(file: Path, figures: Figures) -> None:
    """Written beside and renamed, so that two processes at once cannot leave half a file."""
    beside = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(figures.to_json(), encoding="utf-8")
        beside.replace(file)
    except OSError:  # a read-only home: the next run measures again
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
