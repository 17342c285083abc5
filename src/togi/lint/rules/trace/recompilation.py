"""The rule ``recompilation``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import plural
from togi.lint.finding import Finding
from togi.lint.rule import TraceRule
from togi.lint.rules.trace._finding import finding
from togi.lint.trace.record import StepEvent, Trace, times


class Recompilation(TraceRule):
    """``torch.compile`` compiles the same code again, because something it relied on has changed.

    What it reports: code that was compiled more than once while the samples were run twice, with the condition (guard)
    that failed. A subject with samples of several sizes, or with other Python arguments in each, shows more.

    Why it costs: each compilation takes seconds to minutes, in the middle of serving or training. After eight of them
    (``recompile_limit``) dynamo gives up and runs that function eagerly for good.

    When it stays silent: the samples give no reason; sizes that are marked as dynamic, or that dynamo has learnt to be
    dynamic by the first change, which is one recompilation and is reported as such.

    Example::

        def forward(self, x):
            self.calls += 1              # a Python number that changes: compiled again
            return x * self.calls

    Use instead::

        self.register_buffer("calls", torch.zeros(()))   # in __init__; calls.add_(1) in forward

    Source: https://docs.pytorch.org/docs/stable/compile/programming_model.recompilation.html
    """

    id = "recompilation"

    def check(self, trace: Trace) -> Iterable[Finding]:
        for event in trace.of("recompilation"):
            function = event.stack[0].function if event.stack else "the module"
            yield finding(
                self.id,
                [event],
                trace,
                message=f"{function} was compiled again, {times(event.count)}: {_reason(event)}.",
                remedy=_remedy(event),
                cost=f"{plural(event.count, 'more compilation')}, counted",
            )


def _reason(event: StepEvent) -> str:
    return event.why if "mismatch" in event.why else f"'{event.why}' no longer held"


def _remedy(event: StepEvent) -> str:
    if "size mismatch" in event.why or ".size()" in event.why or "stride mismatch" in event.why:
        return (
            "Say that the size varies: torch.compile(..., dynamic=True) or torch._dynamo.mark_dynamic(x, dim); or pad "
            "to a few sizes."
        )
    if "dtype mismatch" in event.why or "device" in event.why:
        return "Give it one dtype and device: convert before the compiled function."
    if "type" in event.why:
        return "Give this argument one type in all calls (a float is not an int to the compiler)."
    if "grad_mode" in event.why or "GLOBAL_STATE" in event.why:
        return "Call it under one setting of grad mode, autocast and threads, or compile one function for each."
    return "Pass the number as a tensor, or keep it out of the compiled function."
