"""The rule ``copy-between-devices``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import size
from togi.lint.finding import Finding
from togi.lint.rule import TraceRule
from togi.lint.rules.trace._finding import finding
from togi.lint.trace.record import Trace, by_line, per_step, times, total, total_bytes

_STAGED = "not asynchronous"


class CopyBetweenDevices(TraceRule):
    """Something is copied between host and GPU inside a step, or would have to be.

    What it reports: copies in the step that do not make the host wait (those are ``synchronization``) and yet are not
    what ``non_blocking=True`` promises, because the memory is pageable. Also what fails on a GPU: operations that get a
    tensor that was left on the CPU together with one on the GPU, and a GPU tensor handed to NumPy.

    Why it costs: a bus is an order of magnitude slower than the GPU's memory. From pageable memory the driver first
    copies to a buffer of its own, and nothing overlaps. What fails, fails on the day that a GPU is rented.

    When it stays silent: pinned memory with ``non_blocking=True``; copies within a device; single values on the CPU in
    arithmetic, which travel with the kernel.

    Example::

        def forward(self, x):
            return x + self.table        # a plain attribute: model.to("cuda") does not move it

    Use instead::

        self.register_buffer("table", table, persistent=False)   # in __init__

    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html;
    https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html
    """

    id = "copy-between-devices"

    def check(self, trace: Trace) -> Iterable[Finding]:
        staged = [event for event in trace.of("copy") if not event.waits and _STAGED in event.why]
        for events in by_line(staged):
            first, moved = events[0], total_bytes(events)
            yield finding(
                self.id,
                events,
                trace,
                message=f"{first.op} moves {size(moved)} {per_step(trace)} between host and GPU: {first.why}.",
                remedy="Pin the memory first (DataLoader(pin_memory=True) or tensor.pin_memory() once), or make it on "
                "the GPU.",
                cost=f"{size(moved)} {per_step(trace)}, counted",
                moved=moved,
            )
        for events in by_line(trace.of("mixed-devices")):
            first = events[0]
            yield finding(
                self.id,
                events,
                trace,
                message=f"In {first.op} {first.why} ({times(total(events))} {per_step(trace)}).",
                remedy="Call .cpu() first, once and outside of the step."
                if first.op.endswith(("numpy", "__array__"))
                else "Register it as a buffer, so that it moves with the module, or make it with device=x.device.",
            )
