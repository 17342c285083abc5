"""What ``togi check`` says of a device without one, asked of one: which lines wait for it, and times by the roofline.

More programs, and what keeps code from CUDA graphs, are asked by the part ``tests``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator

import torch
from benchmarks.gpu_parts.row import Row, attempt
from torch import Tensor, nn

import togi
from togi.core.errors import UnknownNameError
from togi.core.proven import MarkedPart
from togi.lint.module.observe import observe
from togi.lint.roofline import devices, this_machine
from togi.lint.roofline.costs import Costs
from togi.lint.roofline.devices import Figures
from togi.lint.trace.check import debug_mode_events, trace_subject
from togi.lint.trace.record import StepEvent
from togi.machine.describe import machine
from togi.measure import take_turn, warm
from togi.subject.inputs import Inputs

SHEET_X = (0.9, 2.5)
"""Measured over predicted, of what a data sheet promises: a device is not faster (clocks vary), and its libraries reach
40 % and more on large operations."""
MEASURED_X = (0.6, 1.67)
"""Of figures that were measured here."""


def rows(device: str) -> Iterator[Row]:
    """What is predicted, or simulated, is what the device does."""
    yield attempt(
        ".item(), masks and nonzero wait",
        "the same lines by torch's debug mode as simulated without a device",
        waits,
        device,
        proves=(MarkedPart.CUDA_SEMANTICS,),
    )
    for kind, figures, bounds, part in (
        ("data sheet", by_sheet, SHEET_X, MarkedPart.DATA_SHEET_TIMES),
        ("measured figures", by_measured, MEASURED_X, MarkedPart.MEASURED_TIMES),
    ):
        bound = f"{bounds[0]:g} to {bounds[1]:g} x of what is predicted"
        for name, make in LARGE.items():
            yield attempt(f"{name}, time by {kind}", bound, timed, make, figures, bounds, device, proves=(part,))


LARGE: dict[str, Callable[[bool], tuple[nn.Module, Tensor]]] = {
    "products": lambda small: (
        nn.Sequential(*(nn.Linear(512 if small else 8192, 512 if small else 8192) for _ in range(2))).bfloat16(),
        torch.randn(256 if small else 8192, 512 if small else 8192).bfloat16(),
    ),
    "sums": lambda small: (_Sums(), torch.randn(1 << (20 if small else 28))),
}
"""Bound by arithmetic, and by memory."""


class _Sums(nn.Module):
    """Reads and writes each number once."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1.0


def by_sheet(device: str) -> Figures | None:
    gpu = machine(device).gpu if device == "cuda" else None
    try:
        return devices.gpu(gpu) if gpu else None
    except UnknownNameError:
        return None


def by_measured(device: str) -> Figures:
    return this_machine.measure(device, machine(device), ("float32", "bfloat16"))


def timed(
    make: Callable[[bool], tuple[nn.Module, Tensor]],
    figures_of: Callable[[str], Figures | None],
    bounds: tuple[float, float],
    device: str,
) -> tuple[bool | None, str]:
    figures = figures_of(device)
    if figures is None:
        return None, "there is no data sheet of it in togi"
    if figures.measured and not figures.steady:
        return None, "neighbours disturbed the measurement of the figures"
    module, x = make(device == "cpu")
    module, x = module.to(device).eval(), x.to(device)
    costs = Costs.of(observe(module, Inputs((x,))).calls, figures)
    with torch.no_grad():
        warm(module, [Inputs((x,))], device=device)
        found_s = statistics.median(take_turn(module, [Inputs((x,))], 5, device=device).times_ms) / 1e3
    ratio = found_s / costs.seconds
    figure = f"{found_s * 1e3:.3g} ms, predicted {costs.seconds * 1e3:.3g} by {figures.name}: {ratio:.2f} x"
    return bounds[0] <= ratio <= bounds[1], figure


WAITING = 3
"""Lines of ``Waits``."""


class Waits(nn.Module):
    """A number is read, a mask and ``nonzero`` have as many results as their values say; the other lines wait for
    nothing."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum().item()
        found = x[x > 0]
        where = x.nonzero()
        shape = x.shape[0] * x.numel()
        return torch.where(x > 0, x * total, x + shape) + found.mean() + where.shape[0]


def waits(device: str) -> tuple[bool | None, str]:
    simulated = _lines(event for event in trace_subject(togi.Subject(Waits(), torch.randn(6, 4))).events if event.waits)
    if device == "cpu":
        return None, f"{len(simulated)} lines by simulation; the debug mode of a device tells which wait there"
    module, x = Waits().to(device), torch.randn(6, 4, device=device)
    module(x)
    with debug_mode_events() as events:
        module(x)
    told = _lines(events)
    return told == simulated and len(told) == WAITING, f"{len(told)} by debug mode, {len(simulated)} by simulation"


def _lines(events: Iterable[StepEvent]) -> set[int]:
    """Of each event the innermost in this file."""
    own = ([frame.line for frame in event.stack if frame.path == __file__] for event in events)
    return {lines[0] for lines in own if lines}
