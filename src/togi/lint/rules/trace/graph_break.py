"""The rule ``graph-break``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import TraceRule
from togi.lint.rules.trace._finding import finding
from togi.lint.trace.record import StepEvent, Trace


class GraphBreak(TraceRule):
    """``torch.compile`` cannot follow a line and breaks its graph there.

    What it reports: every line at which dynamo, run on the subject with its samples, ended one graph and began another,
    with its reason and its hints.

    Why it costs: kernels are not fused across a break, tensors between two graphs go through memory, Python runs in
    between, and CUDA graphs end there. ``fullgraph=True`` and export fail.

    When it stays silent: the line is never reached with these samples; the break is inside of torch's own files.
    Functions that are excluded on purpose (``torch.compiler.disable``) are reported, because they break all the same.

    Example::

        if x.sum() > 0:
            x = x * 2

    Use instead::

        x = torch.where(x.sum() > 0, x * 2, x)

    Source: https://docs.pytorch.org/docs/stable/compile/programming_model.graph_breaks_index.html
    """

    id = "graph-break"

    def check(self, trace: Trace) -> Iterable[Finding]:
        for event in trace.of("graph-break"):
            yield finding(
                self.id,
                [event],
                trace,
                message=f"torch.compile breaks its graph here: {event.why}.",
                remedy=_remedy(event),
                cost="one more graph, entered through Python",
            )


def _remedy(event: StepEvent) -> str:
    reason = event.why
    if reason.startswith("the branch depends"):
        return "Choose with torch.where or torch.cond, or branch on something that the host knows (shape, config)."
    if "item()" in reason or "tolist" in reason:
        return "Keep the value a tensor, or set torch._dynamo.config.capture_scalar_outputs = True."
    if "print" in event.detail or "log" in reason:
        return "Print outside of the compiled function, or guard it with 'if not torch.compiler.is_compiling()'."
    if "dynamic shape" in reason.lower() or "data dependent" in reason.lower():
        return "Keep the full size and mask, or set torch._dynamo.config.capture_dynamic_output_shape_ops = True."
    hint = next((line for line in event.detail.splitlines() if line.startswith("Hint:")), "")
    return hint.removeprefix("Hint:").strip() or "Move this line out of what is compiled."
