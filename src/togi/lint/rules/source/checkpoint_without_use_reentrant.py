"""The rule ``checkpoint-without-use-reentrant``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import calls_without
from togi.lint.source.edits import add_argument
from togi.lint.source.fixes import fix
from togi.lint.source.model import Source

_NAMES = {f"torch.utils.checkpoint.{name}" for name in ("checkpoint", "checkpoint_sequential")}


class CheckpointWithoutUseReentrant(SourceRule):
    """Activation checkpointing that does not choose its variant.

    What it reports: ``torch.utils.checkpoint.checkpoint`` and ``checkpoint_sequential`` without ``use_reentrant``.

    Why it costs: left open, it is the reentrant variant, which needs an input that requires gradients (else the
    gradients are silently None), recomputes the whole region even where less is needed, and breaks with
    ``torch.autograd.grad`` and some compiled code. PyTorch warns, and will raise in a later release.

    When it stays silent: ``use_reentrant`` is given, ``**kwargs`` may hold it, or the call is made under a test of the
    version.

    Example::

        x = checkpoint(self.block, x)

    Use instead::

        x = checkpoint(self.block, x, use_reentrant=False)

    Fix safety: the fix is not applied without being asked. Where the reentrant variant works, the other gives the same
    gradients. It also gives gradients where that one silently gives None, so what is trained may change.

    Source: https://docs.pytorch.org/docs/stable/checkpoint.html (``use_reentrant``)
    """

    id = "checkpoint-without-use-reentrant"

    def check(self, source: Source) -> Iterable[Finding]:
        for call, name in calls_without(source, _NAMES, "use_reentrant"):
            yield source.finding(
                self.id,
                call,
                f"{name.rpartition('.')[2]} without use_reentrant takes the reentrant variant, and a later release "
                "raises here",
                "add use_reentrant=False (use_reentrant=True keeps what it does now)",
                fix=fix("Use the non-reentrant variant", add_argument(source, call, "use_reentrant=False"), safe=False),
            )
