"""The technique ``no_grad``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


class NoGrad(Technique):
    """Call the module under ``torch.no_grad``.

    What it does: autograd records nothing, so no intermediate is kept for a backward pass. Everything that togi
    compares runs under it or ``inference_mode``; plain eager under ``no_grad`` is the reference of every speed-up.

    When it applies: always.

    When it refuses: never.

    Claim: less memory (no activations kept) and less time for models of many small operations. Every study measures
    both: the row ``original`` is the same model called with autograd on.

    Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation

    Cost and risk: none at inference; outputs do not require gradients.
    """

    id = "no_grad"
    stage = Stage.RUNTIME
    provides = frozenset({"grad_mode"})
    conflicts = frozenset({"grad_mode"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        return Applies()

    def repro_setting(self, options: Options) -> str:
        return ""  # the script has its own place for the mode of autograd

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        if candidate.program is not None and not candidate.program.allocates_with_torch:
            return candidate  # it records nothing, and small parts of programs feel what switching costs
        return candidate.with_(contexts=(*candidate.contexts, torch.no_grad))
