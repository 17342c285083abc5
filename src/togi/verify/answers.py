"""What a sequence of calls of the original gave, as the records of the truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from togi.verify.compare import Difference, continuous, difference, identical
from togi.verify.observe import Observation
from togi.verify.truth import Answer, LeafTruth, TruthFacts
from togi.verify.units import Measured, epsilon_of, share

NOISE_ROUNDINGS = 1000.0
"""Two runs of the original may differ by so many roundings (atomics on a GPU sum in any order), by 1e-4 at most in
float32, and still be the same answer. Not measured in units: what makes it unrepeatable would make the unit large."""
NOISE_SHARE = 1e-3
"""The same for integers and bools: share of elements."""


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
    for seen, one, two in zip(run.seen, run.leaves, again.leaves, strict=False):
        for (name, _), first, second in zip(seen.leaves, one, two, strict=False):
            off = apart(second, first)
            if off > noise_limit(first):
                reason = (
                    f"the original itself is not repeatable: with the same input and the same seed {name} differs by "
                    f"{off:.3g} of its root mean square, so nothing can be proven equal to it"
                )
                return facts.model_copy(update={"repeatable": False, "unrepeatable": reason})
    note = "the original is not repeatable to the bit, but within rounding"
    return facts.model_copy(update={"notes": (*facts.notes, note)})


def apart(one: Tensor, other: Tensor) -> float:
    """Relative root-mean-square difference (share of elements where discrete) of two runs."""
    if one.shape != other.shape:
        return float("inf")
    if not continuous(one):
        return share(int((one != other).sum()), one)
    return difference(one, other, other).rmse


def noise_limit(tensor: Tensor) -> float:
    if not continuous(tensor):
        return NOISE_SHARE
    epsilon = epsilon_of(tensor)
    return max(4 * epsilon, min(NOISE_ROUNDINGS * epsilon, 1e-4))


def different_form(eager: Run, exact: Run) -> str:
    """Why answers in float64 cannot stand beside eager's, or an empty string."""
    for one, other in zip(eager.seen, exact.seen, strict=True):
        if [n for n, _ in one.leaves] != [n for n, _ in other.leaves]:
            return "in float64 its output has another structure"
        for (name, a), (_, b) in zip(one.leaves, other.leaves, strict=True):
            if a.shape != b.shape:
                return f"in float64 {name} has another shape (it depends on the values)"
            if continuous(a) != continuous(b):
                return f"in float64 {name} has another kind of dtype"
    return ""
