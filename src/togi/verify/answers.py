"""What a sequence of calls of the original gave, as the records of the truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from togi.verify.compare import Difference, continuous, difference, identical, ratio
from togi.verify.observe import Observation
from togi.verify.truth import Answer, LeafTruth, TruthFacts
from togi.verify.units import Measured, share

NOISE_UNITS = 8.0
"""Two runs of the original may differ by so many units (atomics on a GPU) and still be the same answer."""


@dataclass
class Run:
    """One sequence of calls. ``leaves[c]`` are dense CPU copies, taken before the next call could change them."""

    seen: list[Observation]
    leaves: list[list[Tensor]]


def answer_of(
    index: int,
    seen: Observation,
    eager: list[Tensor],
    truth: list[Tensor],
    measured: list[Measured],
    gradients: dict[str, bool],
) -> Answer:
    leaves = []
    for i, (name, tensor) in enumerate(seen.leaves):
        unit, own, threshold = measured[i]
        strided = tensor.layout is torch.strided
        leaves.append(
            LeafTruth(
                name=name,
                dtype=str(tensor.dtype).removeprefix("torch."),
                device=tensor.device.type,
                layout=str(tensor.layout).removeprefix("torch."),
                shape=tuple(tensor.shape),
                stride=tuple(tensor.stride()) if strided else (),
                contiguous=strided and tensor.is_contiguous(),
                requires_grad=gradients.get(name),
                threshold=threshold,
                eager_rmse=own.rmse if isinstance(own, Difference) else own,
                eager_max=own.max_abs if isinstance(own, Difference) else own,
                unit=unit,
                same=truth[i].dtype == eager[i].dtype and identical(truth[i], eager[i]),
            )
        )
    return Answer(
        input=index,
        structure=seen.structure,
        leaves=tuple(leaves),
        changed=seen.changed,
        shares_inputs=tuple(sorted(seen.shares_inputs)),
        shares_outputs=tuple(sorted(seen.shares_outputs)),
    )


def judged(facts: TruthFacts, again: Run | None, run: Run) -> TruthFacts:
    """With the word on repeatability; ``again`` is given when a second run differed in some bit."""
    if again is None:
        return facts
    for c, leaves in enumerate(again.leaves[: len(run.leaves)]):
        for leaf, one, two in zip(facts.answers[c].leaves, run.leaves[c], leaves, strict=False):
            off = _apart(two, one, leaf)
            if off > NOISE_UNITS:
                reason = (
                    f"the original itself is not repeatable: with the same input and the same seed {leaf.name} differs "
                    f"by {off:.3g} times its own error, so nothing can be proven equal to it"
                )
                return facts.model_copy(update={"repeatable": False, "unrepeatable": reason})
    note = "the original is not repeatable to the bit, but within its own error"
    return facts.model_copy(update={"notes": (*facts.notes, note)})


def _apart(one: Tensor, other: Tensor, leaf: LeafTruth) -> float:
    if one.shape != other.shape:
        return float("inf")
    if not continuous(one):
        return ratio(share(int((one != other).sum()), one), leaf.unit.rms)
    found = difference(one, other, other, leaf.threshold)
    return max(ratio(found.rms, leaf.unit.rms), ratio(found.peak, leaf.unit.peak))
