"""The rule ``layout-copy``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import size
from togi.lint.finding import Finding
from togi.lint.rule import TraceRule
from togi.lint.rules.trace._finding import finding
from togi.lint.trace.record import StepEvent, Trace, by_line, per_step, total_bytes

LEAST_BYTES = 64 * 1024
"""Lines that move less than this per step are not worth a change."""


class LayoutCopy(TraceRule):
    """A tensor is copied only to change the order of its elements in memory.

    What it reports: ``contiguous``, ``reshape``, ``flatten`` and ``to(memory_format=...)`` that had to copy, with the
    bytes read and written (64 KiB per step and more); among them turns from ``channels_last`` to contiguous memory and
    back.

    Why it costs: a pass over the memory that computes nothing, and a second tensor next to the first. A network in
    ``channels_last`` loses what it gained with every such turn.

    When it stays silent: nothing was copied (the memory was in that order), ``clone`` that keeps the order, and copies
    in the backward pass, which follow from those of the forward pass.

    Example::

        x = x.permute(0, 2, 3, 1).contiguous()      # to have channels last for a norm or a linear layer

    Use instead::

        x = x.to(memory_format=torch.channels_last)  # once, at the input: the permuted view is then contiguous

    Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """

    id = "layout-copy"
    technique = "channels_last"

    def check(self, trace: Trace) -> Iterable[Finding]:
        for events in by_line(event for event in trace.of("layout") if not event.backward):
            first, moved = events[0], total_bytes(events)
            if moved >= LEAST_BYTES:
                yield finding(
                    self.id,
                    events,
                    trace,
                    message=f"{first.op} copies {size(moved)} {per_step(trace)} (read and written): {first.why}.",
                    remedy=_remedy(first),
                    cost=f"{size(moved)} of memory traffic {per_step(trace)}, counted",
                    moved=moved,
                )


def _remedy(event: StepEvent) -> str:
    if "channels_last" in event.why:
        return (
            "Keep one format from input to output: convert model and input with memory_format=torch.channels_last, and "
            "leave out what asks for contiguous memory (reshape instead of contiguous().view())."
        )
    if "expanded" in event.why:
        return "Let the operation broadcast the expanded tensor: most need no copy of it."
    return "Order the dimensions where the tensor is made, or use what accepts strides (einsum, matmul, unflatten)."
