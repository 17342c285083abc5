"""Decisions of a candidate by values, against those of the original: the integers, booleans and text that it
returns (tokens, labels), and how many there are.

It is left to its own decisions, so after one that differs all that follow may. Whether the first was a tie or a fault,
the calls of its parts tell (``worker/forced``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from togi.core.records import Decisions, Scalar
from togi.decide.faithful import MISMATCH_FLOOR
from togi.subject.plain_tensors import plain
from togi.subject.structure import Structure
from togi.verify.compare import continuous, difference
from togi.verify.truth import Truth

_ANOTHER_DECISION = 1e-2
"""From this error on, relative to an output's root mean square, another decision was taken rather than much rounded:
badly conditioned networks stay below."""
Values = dict[str, Tensor | Scalar]


class _Compared(NamedTuple):
    agree: int = 0
    total: int = 0
    position: tuple[int, ...] = ()


def rounding_decides(truth: Truth) -> bool:
    """Whether the original itself decides otherwise in float64, or moved by a rounding. Then the unit of error is what
    another decision makes (a box elsewhere), and what a fault makes may lie within it."""
    for answer, exact, eager in zip(truth.facts.answers, truth.truth, truth.eager, strict=True):
        for leaf, right, own in zip(answer.leaves, exact, eager, strict=True):
            if not continuous(own):
                limit = MISMATCH_FLOOR
            else:
                scale = difference(right, right, own, leaf.threshold).scale if own.numel() else 0.0
                limit = _ANOTHER_DECISION * scale
            if leaf.unit.rms > limit > 0:
                return True
    return False


def values_of(structure: Structure, tensors: Mapping[str, Tensor]) -> Values:
    """Constants and tensors of an output by their path, in the order of traversal."""
    found: Values = {}
    for name, leaf in structure.named_leaves("output"):
        if leaf.kind == "constant" and leaf.value is not None:
            found[name] = leaf.value
        elif name in tensors:
            found[name] = plain(tensors[name])
    return found


def decisions(expected: Values, found: Values, sample: int) -> Decisions:
    """Compare the decisions on one sample, whose number counts from 1."""
    result = Decisions(agree=0, total=0)
    for name in dict.fromkeys([*expected, *found]):
        agree, total, position = _compared(expected.get(name), found.get(name))
        here = Decisions(agree=agree, total=total)
        if agree < total:
            here = here.model_copy(update={"sample": sample, "output": name, "position": position})
        result = both(result, here)
    return result


def both(one: Decisions, other: Decisions) -> Decisions:
    """Together; ``one`` comes first."""
    first = other if one.sample is None else one
    return first.model_copy(update={"agree": one.agree + other.agree, "total": one.total + other.total})


def _compared(expected: Tensor | Scalar, found: Tensor | Scalar) -> _Compared:
    tensors = [value for value in (expected, found) if isinstance(value, Tensor)]
    if not tensors:
        return _Compared(int(type(expected) is type(found) and expected == found), 1)
    if all(map(continuous, tensors)):  # numbers, which errors are told of; how many of them is a decision
        return _Compared(0, int(len(tensors) == 1 or tensors[0].shape != tensors[1].shape))
    total = max(tensor.numel() for tensor in tensors)
    if len(tensors) == 1 or tensors[0].dim() != tensors[1].dim():
        return _Compared(0, total)
    sizes = torch.tensor([tensor.shape for tensor in tensors])
    common = sizes.amin(0).tolist()
    one, other = (tensor[tuple(map(slice, common))] for tensor in tensors)
    differs = (one != other).nonzero()
    if len(differs):
        return _Compared(one.numel() - len(differs), total, tuple(differs[0].tolist()))
    beyond = next((dim for dim, (a, b) in enumerate(sizes.T.tolist()) if a != b), None)
    return _Compared(one.numel(), total, tuple(size * (dim == beyond) for dim, size in enumerate(common)))
