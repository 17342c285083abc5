"""Effects of a module's calls besides what they return: caches that they fill, tensors that they overwrite.

An engine gets tensors and returns tensors, and changes nothing. ``togi.subject.pure.Pure`` gives it that form: the
module with what it changes as further outputs. ``Effects.finish`` makes the change in the program's own objects.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from togi.core.errors import Refused
from togi.core.records import Record
from togi.subject.common_structure import in_common
from togi.subject.inputs import Inputs
from togi.subject.nested import assign, put_back, substituted, tensors_in
from togi.subject.structure import Structure

if TYPE_CHECKING:
    from torch import Tensor

_GIVEN = "<togi: the argument {}>"


class ChangedArgument(Record):
    """An argument that a call changes."""

    argument: str | int
    """Its keyword, or its position."""
    after: Structure
    """What it is after the call."""
    kept: tuple[int | None, ...]
    """For each tensor of ``after``: which tensor of the argument before the call it still is; None: it is new."""
    written: tuple[int, ...] = ()
    """Tensors of the argument before the call that the call overwrites."""
    stays: tuple[bool, ...] = ()
    """For each container of ``after``, in order of traversal: whether it is the very object that was there before the
    call. Beyond its end none is, as in artifacts from before 2026-11-27: the argument alone is changed where it stands.
    """

    def with_numbers(self, tensors: Sequence[Tensor], argument: Any) -> list[Any]:
        """What ``after`` is built of. ``argument``: before the call."""
        of_tensors, numbers = iter(tensors), iter(self.after.carried_numbers(argument))
        return [next(of_tensors) if more is None else next(numbers) + more for more in self._more]

    @functools.cached_property
    def renew(self) -> Callable[[Any, Iterator[Any]], Any]:
        """``renew(argument, what after is built of)``: what the argument is after the call. It is the same object
        where that can be changed."""
        return self.after.renewer(iter(self.stays))

    @functools.cached_property
    def _more(self) -> tuple[int | None, ...]:
        """For each number that is carried: how much more it is after the call. None for a tensor."""
        leaves = (leaf for leaf in self.after.leaves() if leaf.kind in ("tensor", "carried"))
        return tuple(int(str(leaf.value)) if leaf.kind == "carried" else None for leaf in leaves)


class Effects(Record):
    """The changes that one form of a module's calls makes."""

    changes: tuple[ChangedArgument, ...] = ()
    state: tuple[str, ...] = ()
    """Attributes that the module keeps from call to call: it is called with them (``togi.subject.state``)."""
    carried: int | None = None
    """Numbers in its arguments are counted up and decide nothing, from so much above the least seen on
    (``togi.subject.carried``)."""
    follows: bool = False
    """These numbers may decide something: each follows a size of the same call, and so does the graph."""

    @classmethod
    def of(cls, call: Callable[..., Any], *given: Inputs, carried: int | None = None) -> Effects:
        """Make calls of one form with each of ``given`` (which are changed) and see what changes.

        Raises Refused where that differs from call to call in more than tensors and counts of them.
        """
        seen: dict[str | int, list[_ArgumentSeen]] = defaultdict(list)
        for call_inputs in given:
            before = [(key, _ArgumentSeen(value)) for key, value in arguments_of(call_inputs)]
            call(*call_inputs.args, **call_inputs.kwargs)
            for key, argument in before:
                argument.look_again()
                seen[key].append(argument)
        changes = [_change(key, arguments, carried) for key, arguments in seen.items()]
        return cls(changes=tuple(change for change in changes if change is not None), carried=carried)

    def split(self, output: Any, given: Inputs, before: Mapping[str | int, list[Tensor]]) -> Any:
        """The output without the changed arguments themselves, and the new tensors of these: a pure result."""
        arguments = dict(arguments_of(given))
        names = {id(arguments[change.argument]): _GIVEN.format(change.argument) for change in self.changes}
        new = []
        for change in self.changes:
            tensors = tensors_in(arguments[change.argument])
            new += [tensor for tensor, old_place in zip(tensors, change.kept, strict=True) if old_place is None]
            new += [before[change.argument][index] for index in change.written]
        return substituted(output, names), new

    def finish(
        self,
        result: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors_of: Callable[[str | int], list[Tensor]] | None = None,
    ) -> Any:
        """Make the changes of a pure result in the arguments given; the output as the module itself returns it.

        ``tensors_of``: an argument, by its keyword or position, for those who know already.
        """
        output, new = result
        new_tensors = iter(new)
        back: dict[str, Any] = {}
        for change in self.changes:
            argument = args[change.argument] if isinstance(change.argument, int) else kwargs[change.argument]
            tensors: list[Tensor] = []
            if change.written or any(old_place is not None for old_place in change.kept):
                tensors = tensors_in(argument) if tensors_of is None else tensors_of(change.argument)
            after: list[Any] = [
                next(new_tensors) if old_place is None else tensors[old_place] for old_place in change.kept
            ]
            if change.after.carries:
                after = change.with_numbers(after, argument)
            for index in change.written:
                tensors[index].copy_(next(new_tensors))
            if change.after.kind != "tensor" and (renewed := change.renew(argument, iter(after))) is not argument:
                assign(argument, renewed)
            back[_GIVEN.format(change.argument)] = argument
        return put_back(output, back)


class _ArgumentSeen:
    """An argument before a call, and after it."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.structure = Structure.of(value)
        self.tensors = tensors_in(value)
        self._values = [tensor.detach().clone() for tensor in self.tensors]
        self._containers = dict(_containers(value, self.structure))
        self.written: tuple[int, ...] = ()
        self.kept: tuple[int | None, ...] = ()

    def stays(self, after: Structure) -> list[tuple[Structure, bool]]:
        """Each container of the argument after the call, and whether it is the one that was there before."""
        parts = [part for part in after.parts() if not part.is_leaf]
        found = _containers(self.value, after)
        return [(part, self._containers.get(path) is now) for part, (path, now) in zip(parts, found, strict=True)]

    def look_again(self) -> None:
        """After the call."""
        from togi.subject.behaviour import same

        places = {id(tensor): index for index, tensor in enumerate(self.tensors)}
        self.written = tuple(i for i, tensor in enumerate(self.tensors) if not same([tensor], [self._values[i]]))
        self.kept = tuple(places.get(id(tensor)) for tensor in tensors_in(self.value))

    @property
    def changed(self) -> bool:
        return self.structure.kind != "opaque" and (
            bool(self.written)
            or self.kept != tuple(range(len(self.tensors)))
            or Structure.of(self.value) != self.structure
        )


def _change(key: str | int, seen: Sequence[_ArgumentSeen], carried: int | None) -> ChangedArgument | None:
    """The change of one argument in all calls, or None where there is none. Raises Refused where it differs."""
    if not any(argument.changed for argument in seen):
        return None
    after = in_common([argument.value for argument in seen], carried=carried)
    if after is not None and after.carries:
        after = _counted_up(after, seen)
    old_places = seen[0].kept
    if after is None or any(argument.kept != old_places for argument in seen):
        raise Refused(f"what its calls change in the argument {key} differs from call to call")
    written = sorted({index for argument in seen for index in argument.written})
    stays = _stays(key, seen, after)
    return ChangedArgument(argument=key, after=after, kept=old_places, written=tuple(written), stays=stays)


def _stays(key: str | int, seen: Sequence[_ArgumentSeen], after: Structure) -> tuple[bool, ...]:
    """For each container of ``after``, whether it stayed in all calls. Raises Refused for a new one that nobody but
    its own class can make."""
    stays: list[bool] = []
    for of_each in zip(*(argument.stays(after) for argument in seen), strict=True):
        stays.append(all(stayed for _, stayed in of_each))
        part, _ = of_each[0]
        if part.is_opaque and not stays[-1]:
            raise Refused(f"its calls leave a new {part.type} in the argument {key}, which only its own class can make")
    return tuple(stays)


def _containers(value: Any, structure: Structure) -> Iterator[tuple[str, Any]]:
    """``(path, container)`` of a value of this structure, in order of traversal."""
    return ((path, item) for path, part, item in structure.walk_all(value) if not part.is_leaf)


def _counted_up(after: Structure, seen: Sequence[_ArgumentSeen]) -> Structure | None:
    """The structure with how much more each number is than before. None where that differs from call to call."""
    more: set[tuple[int, ...]] = set()
    for argument in seen:
        values = {path: leaf.value for path, leaf in argument.structure.named_leaves()}
        numbers = [values.get(path) for path, leaf in after.named_leaves() if leaf.kind == "carried"]
        if not all(type(number) is int for number in numbers):
            return None
        now = after.carried_numbers(argument.value)
        more.add(tuple(b - int(str(a)) for a, b in zip(numbers, now, strict=True)))
    if len(more) > 1:
        return None
    by_place = iter(more.pop())

    def counted(structure: Structure) -> Structure:
        if structure.kind == "carried":
            return structure.model_copy(update={"value": next(by_place)})
        return structure.with_children(map(counted, structure.children)) if structure.carries else structure

    return counted(after)


def arguments_of(given: Inputs) -> list[tuple[str | int, Any]]:
    return [*enumerate(given.args), *given.kwargs.items()]
