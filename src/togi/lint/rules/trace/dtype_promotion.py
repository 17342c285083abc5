"""The rule ``dtype-promotion``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import size
from togi.lint.finding import Finding
from togi.lint.rule import TraceRule
from togi.lint.rules.trace._finding import finding
from togi.lint.trace.record import Trace, by_line, per_step, total_bytes


class DtypePromotion(TraceRule):
    """Tensors of two floating-point widths are mixed, and everything after becomes the wider one.

    What it reports: elementwise operations that were given, say, a float32 and a float64 tensor, or a half-precision
    and a float32 one, and the bytes by which the result is larger.

    Why it costs: twice the memory traffic from there on; float64 runs at a small fraction of the rate of float32 on
    GPUs that are not made for data centres, and float32 misses the tensor cores that half precision was meant for.

    When it stays silent: conversions that are asked for (``double()``, ``to(torch.float64)``, autocast); numbers and
    tensors without dimensions, which do not promote; operations all of whose operands have one width.

    Example::

        x + torch.from_numpy(np.linspace(0, 1, n))      # NumPy makes float64

    Use instead::

        x + torch.linspace(0, 1, n, dtype=x.dtype, device=x.device)

    Source: https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc; CUDA C++ Programming
    Guide, "Arithmetic Instructions" (throughput by compute capability)
    """

    id = "dtype-promotion"

    def check(self, trace: Trace) -> Iterable[Finding]:
        for events in by_line(trace.of("promotion")):
            first, more = events[0], total_bytes(events)
            narrow = first.detail.partition(" -> ")[0]
            yield finding(
                self.id,
                events,
                trace,
                message=f"In {first.op} {first.why}.",
                remedy=f"Convert the wider operand, which is usually a constant, once: .to(torch.{narrow}).",
                cost=f"{size(more)} more in the result alone, {per_step(trace)}, counted",
                moved=more,
            )
