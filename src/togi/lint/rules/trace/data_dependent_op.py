"""The rule ``data-dependent-op``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import TraceRule
from togi.lint.rules.trace._finding import finding
from togi.lint.trace.record import Trace, by_line, per_step, times, total


class DataDependentOp(TraceRule):
    """The size of a result depends on values.

    What it reports: operations such as ``nonzero``, ``x[mask]``, ``masked_select``, ``unique``, ``bincount`` and
    ``repeat_interleave`` by counts, at the line where they ran, with the size that came out.

    Why it costs: such a step cannot be recorded in a CUDA graph, and ``torch.compile`` breaks its graph there or works
    with a size that it does not know. Memory is allocated anew in every step, of another size. That the host also waits
    is reported by ``synchronization``.

    When it stays silent: sizes follow from shapes: ``topk``, ``sort``, indexing by positions, ``nonzero_static``,
    ``torch.where`` with three arguments.

    Example::

        loss = losses[labels != ignored].mean()

    Use instead::

        valid = (labels != ignored).to(losses.dtype)
        loss = (losses * valid).sum() / valid.sum()

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs (constraints);
    https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
    """

    id = "data-dependent-op"

    def check(self, trace: Trace) -> Iterable[Finding]:
        for events in by_line(trace.of("dynamic-shape")):
            first = events[0]
            yield finding(
                self.id,
                [event.model_copy(update={"detail": ""}) for event in events],  # the message has it
                trace,
                message=f"The size of what {first.op} gives depends on values; this time it was {first.detail}.",
                remedy="Keep the full size and mask: torch.where(mask, a, b), a multiplication by the mask, topk or "
                "nonzero_static with a size that is large enough.",
                cost=f"{times(total(events))} {per_step(trace)}: no CUDA graph over this line",
            )
