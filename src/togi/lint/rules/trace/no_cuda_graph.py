"""The rule ``no-cuda-graph``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import plural
from togi.lint.finding import Finding
from togi.lint.rule import TraceRule
from togi.lint.rules.trace._finding import finding
from togi.lint.trace.record import StepEvent, Trace, by_line, line_of, total

_TO_DEVICE = "Make it on the device (device=x.device), or once in __init__ as a buffer (register_buffer)."
_MESSAGES = {
    "mutated input": "the compiled code around this line is not replayed as a CUDA graph: an input is changed in place",
    "CPU operation": "the CUDA graph is cut here: {op} runs on the CPU",
    "copy between devices": "the CUDA graph is cut here: {op} copies between CPU and GPU",
    "several GPUs": "there is no CUDA graph of the compiled code around this line: {op} is on another GPU",
    "unsupported operation": "the CUDA graph is cut here, or left out: it cannot hold {op}",
    "stale output": "what an earlier call returned is read here, and a CUDA graph has overwritten it since",
    "moved input": "a CUDA graph is recorded anew, since a weight or buffer that is read here was replaced",
    "sizes": "a CUDA graph is recorded anew for each size: {count} in these samples",
}
_COSTS = {
    "stale output": "an error of torch's, or wrong values",
    "moved input": "{count}, counted",
    "sizes": "{count}, counted",
}
"""Where it is not that kernels are launched one by one."""
_REMEDIES = {
    "mutated input": (
        "Return the new value, or keep the tensor as a buffer of the module. Where it is always the same tensor (a "
        "cache), call torch._dynamo.mark_static_address(tensor) before the first call."
    ),
    "CPU operation": _TO_DEVICE,
    "copy between devices": _TO_DEVICE,
    "several GPUs": "Compile the part on each GPU by itself.",
    "unsupported operation": "Keep it out of what is compiled, or use an operation whose result has a fixed size.",
    "stale output": (
        "Keep it in a buffer that is written in place (register_buffer, then self.state.copy_(new)), or return it and "
        "clone it between the calls."
    ),
    "moved input": "Write the new values in place (self.scale.copy_(new)), so that it stays where it is.",
    "sizes": "Pad to a few sizes (togi.graphs.capture chooses them), or leave CUDA graphs off: mode='default'.",
}


class NoCudaGraph(TraceRule):
    """``torch.compile(mode="reduce-overhead")`` could not replay this as one CUDA graph.

    What it reports: lines that keep compiled code from being replayed as a CUDA graph, or that cut the graph: inputs
    that are changed in place, operations on the CPU, copies between CPU and GPU, several GPUs, operations that no graph
    can hold. Also sizes, and weights or buffers that are replaced between calls, for each of which a graph is recorded
    anew. Also results of an earlier call that the next one reads, compiled or not, although its replay writes over
    them. It is read off the graphs that ``torch.compile`` makes of the subject, by what Inductor looks at before it
    records, and off two passes over the samples; nothing is recorded, and no GPU is needed for a forward pass.

    Why it costs: what is not replayed is launched kernel by kernel, each by the host. Inductor says so in a log only,
    and the code runs without. Each recording takes time and keeps memory of its own.

    When it stays silent: the state is a parameter, a buffer or marked as static; an index made on the CPU is one that
    Inductor makes on the GPU; a copy that ``synchronization`` reports at the same line. A result of an earlier call
    that only plain code reads, outside of what is compiled, is not looked for with ``--device cuda``, nor in what calls
    the subject: torch raises an error there. An input that an earlier replay has made may be changed in place; that is
    not known here, and reported.

    Example::

        def forward(self, x, cache):
            cache.add_(x)                    # an input is changed: no CUDA graph
            return x + torch.arange(len(x)).cumsum(0).to(x.device)

    Use instead::

        def forward(self, x, cache):
            return x + torch.arange(len(x), device=x.device).cumsum(0), cache + x

    Source: https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html (limitations);
    torch/_inductor/scheduler.py (should_partition), torch/_inductor/cudagraph_utils.py
    """

    id = "no-cuda-graph"

    def check(self, trace: Trace) -> Iterable[Finding]:
        waits = {line_of(event) for event in trace.events if event.waits}
        for cause in _MESSAGES:
            events: Iterable[StepEvent] = (event for event in trace.of("cuda-graph") if event.why == cause)
            if cause == "copy between devices":
                events = (event for event in events if line_of(event) not in waits)
            for group in by_line(events):
                count = total(group)
                message = _MESSAGES[cause].format(op=group[0].op, count=count)
                yield finding(
                    self.id,
                    group,
                    trace,
                    message=f"{message[0].upper()}{message[1:]}.",
                    remedy=_REMEDIES[cause],
                    cost=_COSTS.get(cause, "kernels launched one by one").format(count=plural(count, "recording")),
                )
