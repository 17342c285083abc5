"""Numbers in arguments that calls count up, which decide nothing of what they return or follow a size of the call.

A cache whose window is full holds as many keys as before, and a number next to them that grows with every call. An
engine is made for certain numbers, so it may serve such calls where the number makes no difference. Nobody can
read that from a module: it is asked, with numbers far beyond those that were seen. Where the number decides, as with
a mask of all that went through, a graph may follow the size that it equals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import ArtifactError
from togi.subject.behaviour import same, seed_all
from togi.subject.common_structure import in_common_or_carried
from togi.subject.inputs import Inputs
from togi.subject.nested import substituted, tensors_in
from togi.subject.sample_facts import arguments_in_common, carried_numbers, sizes_followed, values_of
from togi.subject.structure import Structure

_FURTHER = (1, 2, 1 << 12, 1 << 20)
"""By so much more are the numbers of a call, to see whether that makes a difference."""


def carried_from(call: Callable[..., Any], calls: Sequence[Inputs]) -> int | None:
    """By how much less than the least of ``calls`` such numbers may be: 0 or negative. ``calls``: of one form.

    None where they differ in more than such numbers, tensors and counts of these, or where a number decides something.
    """
    structures = arguments_in_common(calls, in_common_or_carried(0))
    if structures is None or not any(structure.carries for structure in structures):
        return None
    in_order = sorted(calls, key=lambda given: carried_numbers(given, structures))
    try:
        if not all(_decides_nothing(call, given, structures) for given in in_order[:: max(1, len(calls) - 1)]):
            return None
        return _least(call, in_order[0], structures)
    except (ValueError, ArtifactError):  # what its arguments hold cannot be built again
        return None


def followed_from(calls: Sequence[Inputs]) -> int | None:
    """As ``carried_from``, where each number that differs between ``calls`` equals a size of a tensor in the same call,
    or is a constant apart from it, wherever that tensor is: the number may decide something, and a graph may follow it.
    For which numbers that holds, the graph's conditions on sizes say. None where one follows no size."""
    structures = arguments_in_common(calls, in_common_or_carried(0))
    if structures is None or not any(structure.carries for structure in structures):
        return None
    tensors = [tensors_in(values_of(given)) for given in calls]
    if sizes_followed(calls, structures, tensors) is None:
        return None
    return -min(number for given in calls for number in carried_numbers(given, structures))


def _decides_nothing(call: Callable[..., Any], given: Inputs, structures: Sequence[Structure]) -> bool:
    expected = _answer(call, _raised(given, structures, 0))
    return all(_answer(call, _raised(given, structures, more)).is_as(expected, more) for more in _FURTHER)


def _least(call: Callable[..., Any], given: Inputs, structures: Sequence[Structure]) -> int:
    """The smallest numbers at which it answers as with its own: a window may not be full with fewer."""
    expected = _answer(call, _raised(given, structures, 0))

    def is_the_same(more: int) -> bool:
        try:
            return _answer(call, _raised(given, structures, more)).is_as(expected, more)
        except Exception:  # foreign code: numbers that no call has
            return False

    known, below = 0, -min(carried_numbers(given, structures)) - 1
    while known - below > 1:
        middle = (known + below) // 2
        known, below = (middle, below) if is_the_same(middle) else (known, middle)
    return known


def _raised(given: Inputs, structures: Sequence[Structure], more: int) -> Inputs:
    """The call with fresh tensors, and numbers that are so much larger."""
    fresh = given.clone()
    values = [
        structure.build(iter(_items(structure, value, more))) if structure.carries else value
        for structure, value in zip(structures, values_of(fresh), strict=True)
    ]
    names = sorted(fresh.kwargs)
    count = len(fresh.args)
    return Inputs(tuple(values[:count]), dict(zip(names, values[count:], strict=True)))


def _items(structure: Structure, value: Any, more: int) -> list[Any]:
    return [
        item + more if leaf.kind == "carried" else item
        for _, leaf, item in structure.walk(value)
        if leaf.kind in ("tensor", "carried")
    ]


class _AnsweredCall:
    """What a call returned, and what its arguments are after it."""

    def __init__(self, output: Any, given: Inputs) -> None:
        arguments = values_of(given)
        names = {id(value): f"argument {place}" for place, value in enumerate(arguments)}
        output = substituted(output, names)
        self.structure, self.after = Structure.of(output), [Structure.of(value) for value in arguments]
        self.tensors: list[Tensor] = [*tensors_in(output), *tensors_in(arguments)]

    def is_as(self, expected: _AnsweredCall, more: int) -> bool:
        """The same, with numbers in the arguments that are as much larger as they were before."""
        alike = self.structure == expected.structure and same(self.tensors, expected.tensors)
        return alike and all(map(_differ_by(more), self.after, expected.after))


def _differ_by(more: int) -> Callable[[Structure, Structure], bool]:
    def alike(found: Structure, expected: Structure) -> bool:
        leaves, others = list(found.named_leaves()), list(expected.named_leaves())
        if len(leaves) != len(others):
            return False
        return all(a == b or _is_more(a, b, more) for a, b in zip(leaves, others, strict=True))

    return alike


def _is_more(found: tuple[str, Structure], expected: tuple[str, Structure], more: int) -> bool:
    (path, leaf), (other_path, other) = found, expected
    numbers = type(leaf.value) is int and type(other.value) is int
    return path == other_path and numbers and int(str(leaf.value)) - int(str(other.value)) == more


def _answer(call: Callable[..., Any], given: Inputs) -> _AnsweredCall:
    seed_all(0)
    with torch.no_grad():
        return _AnsweredCall(call(*given.args, **given.kwargs), given)
