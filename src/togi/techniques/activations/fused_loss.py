"""The technique ``fused_loss``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.errors import Refused
from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, StepTechnique

if TYPE_CHECKING:
    from torch import Tensor, nn

    from togi.subject.inputs import Inputs
    from togi.subject.training import TrainingStep

_OWN_LOOP = "the loss is inside of the user's own loop body"


class FusedLoss(StepTechnique):
    """Compute the cross-entropy of a large vocabulary without its logits.

    What it does: where a linear layer with 4,096 outputs and more is asked for nothing but its cross-entropy,
    ``togi.ops.linear_cross_entropy`` computes both in blocks. Neither the logits of all rows nor their gradient are
    there at any time. Rows may be sliced and reshaped in between, as language models do to predict the next token.

    When it applies: where a limit of memory was given (``--max-memory``), or it is named by ``--only``; a step that
    calls a linear layer and a cross-entropy.

    When it refuses: no such layer goes into a cross-entropy of class numbers without weights, or the step is the user's
    own loop body.

    Claim: 1.2 times eager's processor time for a loss of 1,024 x 50,257 with its backward pass (two cores, busy), and
    tens of MiB in place of several matrices of 196 MiB each.

    Source: https://arxiv.org/abs/2411.09009 (Cut Cross-Entropy)

    Cost and risk: exact up to rounding; a mean over tokens that are not ignored stays one, which micro-batches change.
    The backward pass makes the logits again: four large products in place of three. A model that looks at its logits
    otherwise (for a metric) has them made.
    """

    id = "fused_loss"
    stage = Stage.ACTIVATIONS
    rank = -1  # parts of a batch run under it
    saves_memory_alone = True
    conflicts = frozenset({"engine:torch_compile"})
    speedup = 0.9

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.own_loop:
            return Refuses(_OWN_LOOP)
        if not {"linear", "cross_entropy"} <= facts.functions.keys():
            return Refuses("no cross-entropy is taken of what a linear layer returns")
        return Applies()

    def expected_memory(self, facts: Facts, options: Options) -> float:
        return 0.7

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        import torch

        from togi.subject.behaviour import kept_buffers
        from togi.techniques.deferred_logits import LEAST_CLASSES, DeferredLogits

        if step.train_step is not None:
            raise Refused(_OWN_LOOP)
        plain = step.loss
        is_twin = next(step.original.parameters()).dtype is torch.float64  # of a step that was looked at
        for sample in () if is_twin else step.samples[:1]:
            with step.undisturbed(), kept_buffers(step.module), DeferredLogits() as seen:
                plain(step.module, sample.clone())
            if not seen.fused:
                raise Refused(
                    f"no layer with {LEAST_CLASSES:,} outputs and more goes into nothing but a plain cross-entropy of "
                    "class numbers"
                )

        def loss(module: nn.Module, sample: Inputs) -> Tensor:
            with DeferredLogits():
                return plain(module, sample)

        return step.changed(lambda: None, loss=loss)
