"""The technique ``micro_batches``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from togi.core.errors import FitError, Refused
from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, StepTechnique

if TYPE_CHECKING:
    from togi.subject.training import TrainingStep

_PARTS = (4, 2, 8)


class MicroBatches(StepTechnique):
    """Run forward and backward on parts of the batch, and add the gradients up.

    What it does: the batch goes through in 2, 4 or 8 parts; the optimizer runs once. Activations of one part alone are
    there at a time, so a step needs less memory, and large ones (logits over a vocabulary) may stay in the caches.

    When it applies: all tensors of the samples have the rows of the batch in their first dimension.

    When it refuses: the step draws random numbers (each part would draw others), batch normalisation takes statistics
    over the whole batch, parameters have hooks, or the step is the user's own loop body.

    Claim: a language model of two blocks with 20,000 words, 8 x 64 tokens and labels made from its inputs: 1.35 times
    as fast (between 1.25 and 1.52) in four parts, with the fused optimizer and kept memory. A masked language model,
    whose mean over masked words the proof refuses, needed 401 in place of 1,048 MiB. A ViT gained nothing, an LSTM
    became slower (0.79).

    Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html (gradient accumulation)

    Cost and risk: exact up to rounding where the loss is a mean over the rows. Where it is another mean (over tokens
    that are not ignored), gradients are wrong as soon as rows hold different numbers of them. So the proof also runs
    rows of the sample with ignored labels, a masked half or a smaller length, and a batch of three rows. What differs
    there is set aside, even if it agrees on the sample. Until the backward pass, a gradient of each parameter is held,
    and next to it that of one part: more memory, where parameters are larger than activations.
    """

    id = "micro_batches"
    stage = Stage.ACTIVATIONS
    speedup = 1.01

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.own_loop:
            return Refuses("the backward pass is inside of the user's own loop body")
        if facts.random:
            return Refuses("the step draws random numbers, and each part would draw others")
        if normalised := [name for name in facts.modules if "BatchNorm" in name]:
            return Refuses(f"{normalised[0]} takes its statistics over the whole batch")
        return Applies() if _parts(facts) else Refuses("the samples have no rows in common that could be divided")

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{"parts": parts} for parts in _parts(facts) or _PARTS]

    def expected_memory(self, facts: Facts, options: Options) -> float:
        return 0.5 + 0.5 / int(str(options["parts"]))  # what is kept for backward is about half of a step

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        from togi.subject.micro_batches import accumulated_loss, rows_of
        from togi.torch_internals.modules import has_hooks

        parts = options.get("parts")
        if type(parts) is not int or parts < 1:
            raise Refused(f"parts must be a positive number, not {parts!r}")
        if step.train_step is not None:
            raise Refused("the backward pass is inside of the user's own loop body")
        if hooked := [name for name, parameter in step.parameters.items() if has_hooks(parameter)]:
            raise Refused(f"{hooked[0]} has hooks, which would run for each part")
        try:
            if any(rows_of(sample) < parts for sample in step.samples):
                raise Refused(f"a sample has fewer rows than {parts}")
        except FitError as error:
            raise Refused(str(error)) from None
        return step.changed(lambda: None, loss=accumulated_loss(step.loss, parts), parts=parts)


def _parts(facts: Facts) -> list[int]:
    """Numbers of parts that leave a row to each, where the first dimension of all inputs is the same. A single row
    makes small products, which only a limit of memory is worth: that comes last."""
    rows = {tensor.shape[0] for tensor in facts.inputs if tensor.shape}
    count = (rows.pop() if len(rows) == 1 else None) or 0
    return sorted((parts for parts in _PARTS if parts <= count), key=lambda parts: 2 * parts > count)
