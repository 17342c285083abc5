"""Repeatability of the original: how far two of its runs are apart, and whether that is noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from togi.subject.compared import ATTRIBUTES, NUMBER, TEXT
from togi.subject.containers import labels
from togi.subject.structure import Structure
from togi.verify.compare import continuous, difference, identical
from togi.verify.observe import Observation, ObservedCalls, after_name
from togi.verify.truth import TruthFacts
from togi.verify.units import epsilon_of, share

NOISE_ROUNDINGS = 1000.0
"""Two runs of the original may differ by so many roundings (atomics on a GPU sum in any order), by 1e-4 at most in
float32, and still be the same answer. Not measured in units: what makes it unrepeatable would make the unit large."""
NOISE_SHARE = 1e-3
"""The same for integers and bools: share of elements."""


def with_repeatability(facts: TruthFacts, again: ObservedCalls, run: ObservedCalls) -> TruthFacts:
    """Add the word on repeatability. ``again``: the first calls once more, which differed in some bit."""
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


def varying(one: Observation, other: Observation, *, numbers: bool = True) -> list[str]:
    """Where objects that came back, or that were given, hold other values in one run than in the other of the same call
    (times, addresses, counters of calls): nobody can be asked for those. A tensor never counts as one, and a float does
    with ``numbers`` alone."""
    held = (dict(one.leaves), dict(other.leaves)) if numbers else ()
    found = [*_varying(one.structure, other.structure, "output", held)]
    for name in sorted(one.left.keys() & other.left.keys()):
        found += _varying(one.left[name], other.left[name], name, held)
    return found


def _varying(
    one: Structure, other: Structure, path: str, numbers: tuple[Mapping[str, Tensor], ...], inside: bool = False
) -> Iterator[str]:
    """``numbers``: what the leaves hold in each run; empty where numbers do not count."""
    inside = inside or one.type in (ATTRIBUTES, TEXT)
    if (one.kind, one.type, one.value, one.keys) != (other.kind, other.type, other.value, other.keys) or (
        len(one.children) != len(other.children)
    ):
        if inside:
            yield path
    elif inside and one.type == NUMBER:
        names = (f"{path}.number", after_name(f"{path}.number"))
        values = [held[name] for held in numbers for name in names if name in held]
        if any(not identical(values[0], value) for value in values[1:]):
            yield path
    else:
        named = zip(labels(one.kind, one.keys, len(one.children)), one.children, other.children, strict=True)
        for label, a, b in named:
            yield from _varying(a, b, f"{path}{label}", numbers, inside)
