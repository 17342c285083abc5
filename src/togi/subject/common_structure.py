"""Merges the structures of several values: those of a module's calls, or of what it returned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from togi.core.records import Scalar
from togi.subject.classes import name_of
from togi.subject.containers import KEYED, SEQUENCES, WHOLE, items_of
from togi.subject.nested import tensors_in
from togi.subject.structure import Structure

Shapes = Sequence[Sequence[int]]
"""Of the tensors of a value, in order of traversal."""


def without_counts(structure: Structure) -> Structure:
    """The structure without numbers next to tensors, which may be counts."""
    counts = structure.kind in KEYED and any(child.kind == "tensor" for child in structure.children)
    return structure.with_children(
        _LEFT_OUT if counts and _is_number(child) else without_counts(child) for child in structure.children
    )


_LEFT_OUT = Structure(kind="constant", value="a number")


def in_common(values: Sequence[Any], *, carried: int | None = None) -> Structure | None:
    """The structure of values that differ in their tensors alone, and in counts of these; None where they differ in
    more. ``carried``: other numbers next to tensors decide nothing, from so much above the least on (negative: below).
    """
    shapes = [[tensor.shape for tensor in tensors_in(value)] for value in values]
    common = _in_common([Structure.of(value) for value in values], shapes, 0, carried)
    return None if common is None else common[0]


def in_common_or_carried(carried: int) -> Callable[[Sequence[Any]], Structure | None]:
    return functools.partial(in_common, carried=carried)


def in_common_or_given(values: Sequence[Any]) -> Structure | None:
    """As ``in_common``, for a program, whose Python takes numbers, texts and lists as they come: what holds no tensor
    and differs is given as it is, any value of its class."""
    if (common := in_common(values)) is not None:
        return common
    structures = [Structure.of(value) for value in values]
    sample, items = structures[0], [items_of(value) for value in values]
    if sample.children and sample.kind not in WHOLE and _alike(structures):
        children = [in_common_or_given(parts) for parts in zip(*(item.children for item in items if item), strict=True)]
        if (found := [child for child in children if child is not None]) and len(found) == len(children):
            return _holding(structures, found)
    classes = {type(value) for value in values}
    if len(classes) > 1 or any(structure.tensor_count for structure in structures):
        return None
    return Structure(kind="opaque", type=name_of(classes.pop()))


def _in_common(
    structures: Sequence[Structure], shapes: Sequence[Shapes], first: int, carried: int | None
) -> tuple[Structure, int] | None:
    """``first``: number of the first tensor; with the structure comes that of the first behind it."""
    sample = structures[0]
    if all(other == sample for other in structures):
        return sample, first + sample.tensor_count
    if sample.is_leaf or not _alike(structures):
        return None
    children: list[Structure] = []
    numbers: dict[int, list[int]] = {}
    tensors: dict[Scalar, int] = {}
    for position in range(len(sample.children)):
        parts = [structure.children[position] for structure in structures]
        if sample.kind in KEYED and all(map(_is_number, parts)):
            numbers[position] = [int(str(part.value)) for part in parts]
            children.append(parts[0])
            continue
        if sample.kind in KEYED and parts[0].kind == "tensor":
            tensors[sample.keys[position]] = first
        common = _in_common(parts, shapes, first, carried)
        if common is None:
            return None
        child, first = common
        children.append(child)
    for position, counted in numbers.items():
        if len(set(counted)) > 1:
            count = _as_count(counted, shapes, tensors)
            if count is None and (carried is None or not tensors):
                return None
            children[position] = count or _carried(counted, carried or 0)
    return _holding(structures, children), first


def _as_count(numbers: Sequence[int], shapes: Sequence[Shapes], tensors: Mapping[Scalar, int]) -> Structure | None:
    """A count of the first tensor next to it that has a size from which it is a constant apart in every value."""
    for key, tensor in tensors.items():
        for dim in range(min(len(own[tensor]) for own in shapes)):
            more = {number - own[tensor][dim] for number, own in zip(numbers, shapes, strict=True)}
            if len(more) == 1:
                return Structure(kind="count", keys=(key, dim), value=more.pop())
    return None


def _carried(numbers: Sequence[int], more: int) -> Structure:
    return Structure(kind="carried", keys=(min(numbers) + more,), value=numbers[0])


def merged(first: Structure, second: Structure) -> Structure:
    """The common structure of two outputs: a part that differs from call to call cannot be rebuilt from tensors
    alone."""
    if first == second:
        return first
    if first.children and _alike((first, second)) and _holding((first, second), first.children) == first:
        return first.with_children([merged(a, b) for a, b in zip(first.children, second.children, strict=True)])
    kind = first.type or (type(first.value).__name__ if first.kind == "constant" else first.kind)
    return Structure(kind="opaque", type=f"{kind} that differs from call to call")


def _alike(structures: Sequence[Structure]) -> bool:
    """They differ in their children alone, and in which class of lists or tuples holds these."""
    return len({(s.kind, s.keys, *_class_of(s), len(s.children)) for s in structures}) == 1


def _class_of(structure: Structure) -> tuple[str, Scalar]:
    return ("", None) if structure.kind in SEQUENCES else (structure.type, structure.value)


def _holding(structures: Sequence[Structure], children: Sequence[Structure]) -> Structure:
    """What such structures have in common, with these children: a plain list or tuple, where their classes differ."""
    first = structures[0].with_children(children)
    if len({(structure.type, structure.value) for structure in structures}) == 1:
        return first
    return Structure(kind=first.kind, keys=first.keys, children=first.children)


def _is_number(structure: Structure) -> bool:
    return structure.kind == "constant" and type(structure.value) is int
