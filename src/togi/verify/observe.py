"""One call, watched: what came back, what it shares memory with, and what it left in its arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from togi.subject.behaviour import seed_all
from togi.subject.compared import taken_apart
from togi.subject.containers import labels
from togi.subject.inputs import Inputs
from togi.subject.plain_tensors import extent, plain
from togi.subject.signature import Signature
from togi.subject.structure import Structure
from togi.verify.compare import identical
from togi.verify.leaves import fresh, named_arguments, tensors_in

Named = list[tuple[str, Tensor]]
_NOT_COMPARED = Structure(kind="constant")


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The record of one call. ``leaves`` are live tensors, not copies: first those that came back, then those of the
    arguments that the call changed or put there."""

    output: Any
    structure: Structure
    leaves: Named
    returned: int
    """How many of the leaves came back."""
    inputs: Named
    """The tensors of the arguments that were given, as they are after the call."""
    changed: tuple[str, ...]
    """Names of the tensors in arguments whose values, shape or dtype differ after the call, and of the arguments in
    which it left other things than there were: ``left``."""
    left: dict[str, Structure] = field(default_factory=dict)
    """What such an argument is after the call, constants included."""
    shares_inputs: frozenset[tuple[str, str]]
    """(output, input) pairs that overlap in memory."""
    shares_outputs: frozenset[tuple[str, str]]
    """Pairs of outputs of this call that overlap in memory."""

    @property
    def outputs(self) -> Named:
        """The leaves that came back."""
        return self.leaves[: self.returned]

    @property
    def shows_nothing(self) -> bool:
        """Nothing that came back can be compared, and the call changed nothing: all is left out, or can only be used,
        as an iterator."""
        if self.leaves or self.changed:
            return False
        parts = [leaf for leaf in self.structure.leaves() if leaf.kind != "class"]
        return bool(parts) and all(leaf.kind == "opaque" or leaf is _NOT_COMPARED for leaf in parts)

    def copies(self) -> list[Tensor]:
        """Copy what the leaves hold now: dense, on the CPU."""
        return [plain(tensor).clone() for _, tensor in self.leaves]

    def without(self, varying: Collection[str]) -> Observation:
        """Leave out what lies at or below these paths."""
        if not varying:
            return self
        leaves = [(name, tensor) for name, tensor in self.leaves if not _lies_in(name, varying)]
        return replace(
            self,
            structure=_without(self.structure, "output", varying),
            leaves=leaves,
            returned=sum(not _lies_in(name, varying) for name, _ in self.outputs),
            changed=tuple(name for name in self.changed if not _lies_in(name, varying)),
            shares_inputs=_pairs_without(self.shares_inputs, varying),
            shares_outputs=_pairs_without(self.shares_outputs, varying),
            left={name: _without(left, name, varying) for name, left in self.left.items()},
        )


@dataclass
class ObservedCalls:
    """One sequence of calls. ``leaves[c]`` are dense CPU copies, taken before the next call could change them."""

    seen: list[Observation]
    leaves: list[list[Tensor]]

    def add(self, seen: Observation) -> None:
        self.seen.append(seen)
        self.leaves.append(seen.copies())

    def without(self, varying: Collection[str]) -> ObservedCalls:
        """Leave out what lies at or below these paths."""
        kept = [
            [copied for (name, _), copied in zip(seen.leaves, copies, strict=True) if not _lies_in(name, varying)]
            for seen, copies in zip(self.seen, self.leaves, strict=True)
        ]
        return ObservedCalls([seen.without(varying) for seen in self.seen], kept)


def observe(
    call: Callable[..., Any],
    inputs: Inputs,
    signature: Signature,
    *,
    seed: int,
    given: Inputs | None = None,
    varying: Collection[str] = (),
) -> Observation:
    """Call with fresh copies of ``inputs`` (or with ``given``, which holds the same values) after setting the seed.

    ``varying``: paths that are left out (``repeatability.varying``). Whatever ``call`` raises goes to the caller.
    """
    given = fresh(inputs) if given is None else given
    before = _tensors_of(_arguments(inputs, signature))
    forms = {name: Structure.of(value) for name, value in _arguments(given, signature)}
    seed_all(seed)
    output = call(*given.args, **given.kwargs)
    measured, arguments = taken_apart(output), _arguments(given, signature)
    after, leaves = _tensors_of(arguments), tensors_in(measured, "output")
    was, now = dict(before), {name: Structure.of(value) for name, value in arguments}
    left = {name: as_stored(form) for name, form in now.items() if form != forms[name]}
    written = [name for name, tensor in after if name in was and not identical(was[name], tensor)]
    kept = was.keys() - written
    seen = Observation(
        output=output,
        structure=as_stored(Structure.of(measured)),
        leaves=[*leaves, *((after_name(name), tensor) for name, tensor in after if name not in kept)],
        returned=len(leaves),
        inputs=after,
        changed=(*written, *left),
        left=left,
        shares_inputs=overlaps(leaves, after),
        shares_outputs=frozenset((a, b) for a, b, i, j in _overlapping(leaves, leaves) if i < j),
    )
    return seen.without(varying)


def _arguments(inputs: Inputs, signature: Signature) -> list[tuple[str, Any]]:
    return [(name, taken_apart(value)) for name, value in named_arguments(inputs, signature)]


def _tensors_of(arguments: list[tuple[str, Any]]) -> Named:
    return [named for name, value in arguments for named in tensors_in(value, name)]


def _lies_in(name: str, paths: Collection[str]) -> bool:
    return any(name == path or name.startswith((f"{path}.", f"{path}[", f"{path} ")) for path in paths)


def _pairs_without(pairs: frozenset[tuple[str, str]], varying: Collection[str]) -> frozenset[tuple[str, str]]:
    return frozenset(pair for pair in pairs if not any(_lies_in(name, varying) for name in pair))


def _without(structure: Structure, path: str, varying: Collection[str]) -> Structure:
    if _lies_in(path, varying):
        return _NOT_COMPARED
    if structure.is_leaf:
        return structure
    named = zip(labels(structure.kind, structure.keys, len(structure.children)), structure.children, strict=True)
    return structure.with_children(_without(child, f"{path}{label}", varying) for label, child in named)


def after_name(name: str) -> str:
    return f"{name} after the call"


def as_stored(structure: Structure) -> Structure:
    """Make it what comes back from JSON, so that constants compare alike (NaN is not equal to itself; its text is)."""
    return Structure.from_json(structure.to_json())


def overlaps(one: Named, other: Named) -> frozenset[tuple[str, str]]:
    """Pairs of names, of one and of the other, whose tensors overlap in memory."""
    return frozenset((a, b) for a, b, _, _ in _overlapping(one, other))


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the memory from the first to the last element of one reaches into that of the other."""
    return bool(overlaps([("", one)], [("", other)]))


def _overlapping(one: Named, other: Named) -> Iterator[tuple[str, str, int, int]]:
    """Names and places in the lists. From low addresses to high ones: there may be thousands of numbers in each."""
    spans: dict[torch.device, list[tuple[int, int, int, int]]] = defaultdict(list)
    for side, named in enumerate((one, other)):
        for place, (_, tensor) in enumerate(named):
            if (span := extent(tensor)) is not None:
                spans[tensor.device].append((*span, side, place))
    for on_device in spans.values():
        open_: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for start, end, side, place in sorted(on_device):
            for held in open_:
                for gone in [at for at, its_end in held.items() if its_end <= start]:
                    del held[gone]
            for met in open_[1 - side]:
                a, b = (place, met) if side == 0 else (met, place)
                yield one[a][0], other[b][0], a, b
            open_[side][place] = end
