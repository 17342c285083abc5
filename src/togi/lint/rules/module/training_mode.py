"""The rule ``training-mode``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from togi.core.quantities import plural
from togi.lint.finding import Finding
from togi.lint.module.context import ModuleContext, layers
from togi.lint.rule import ModuleRule

_MATTER = ("BatchNorm", "Dropout", "DropPath", "DropBlock", "StochasticDepth", "RReLU", "MultiheadAttention")
"""Parts of class names: layers that compute something else in training mode, or skip a fast path."""


class TrainingMode(ModuleRule):
    """The module was handed over in training mode.

    What it reports: a module whose ``training`` flag is set, or that is in eval mode but holds batch norms in training
    mode, with the layers that then compute something else.

    Why it costs: batch norms compute statistics and write their buffers, dropout draws random numbers and multiplies,
    fast paths of attention are off; and the results depend on the batch.

    When it stays silent: no layer inside behaves differently in training mode, or the subject has a training step.

    Example: ``return models.resnet50(), sample``

    Use instead: ``return models.resnet50().eval(), sample``

    Source: https://docs.pytorch.org/docs/stable/notes/autograd.html, "Evaluation Mode (nn.Module.eval())".
    """

    id = "training-mode"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        whole = "" in context.training
        words = _MATTER if whole else ("BatchNorm",)
        matter = {name: kind for name, kind in context.training.items() if any(word in kind for word in words)}
        if not matter:
            return
        kinds = ", ".join(f"{kind} x {count}" for kind, count in Counter(matter.values()).most_common(4))
        subject = "The module was" if whole else f"{plural(len(matter), 'batch norm')} in a module in eval mode were"
        yield Finding(
            rule=self.id,
            layer="" if whole else next(iter(matter)),
            count=len(matter),
            message=f"{subject} handed over in training mode.",
            evidence=f"{kinds} behave differently in it ({layers(matter)}).",
            remedy="Call eval() on the module before inference, after anything that calls train() on parts of it.",
        )
