"""The rule ``not-captured``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import percent
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext
from togi.lint.rule import ModuleRule


class NotCaptured(ModuleRule):
    """``torch.export`` cannot capture a module as one graph.

    What it reports: the subject, or a module inside of it that takes at least 4 % of a run, with the reason in plain
    words, the line of the source, and what change would let it.

    Why it costs: engines (ONNX Runtime, OpenVINO, AOTInductor) run captured graphs only. What is not captured stays in
    eager; ``togi tune`` then makes the modules inside of it faster one by one.

    When it stays silent: the subject is captured as it is; a module takes less than 4 % of a run; the program itself,
    where it is Python round its modules (``generate``, a pipeline), which nothing captures.

    Example::

        if mask.any():
            x = x[mask]

    Use instead: compute both ways and choose with ``torch.where``, or leave the step that depends on values to a
    function outside of the module.

    Source: https://docs.pytorch.org/docs/stable/export.html, "Limitations of torch.export".
    """

    id = "not-captured"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        for obstacle in context.obstacles:
            yield Finding(
                rule=self.id,
                layer=obstacle.path,
                message=f"{obstacle.reason.rstrip('.')}.",
                evidence=f"{obstacle.module}: {percent(obstacle.share)} of the time of a run.",
                remedy="Change that line, or move what depends on values out of the module; togi tune makes the parts "
                "that can be captured faster one by one.",
                cost=Cost(text="it runs in eager, no engine can take it", measured=False),
            )
