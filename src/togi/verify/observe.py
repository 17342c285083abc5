"""One call, watched: what came back, what it shares memory with, and which inputs it changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from togi.subject.behaviour import seed_all
from togi.subject.compared import as_compared
from togi.subject.inputs import Inputs
from togi.subject.plain_tensors import plain
from togi.subject.signature import Signature
from togi.subject.structure import Structure
from togi.verify.compare import identical
from togi.verify.leaves import fresh, input_tensors, tensors_in

Named = list[tuple[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The record of one call. ``leaves`` are the live output tensors, not copies; then the inputs that the call
    changed."""

    output: Any
    structure: Structure
    leaves: Named
    inputs: Named
    """The input tensors that were given, as they are after the call."""
    changed: tuple[str, ...]
    """Names of the inputs whose values, shape or dtype differ after the call."""
    shares_inputs: frozenset[tuple[str, str]]
    """(output, input) pairs that overlap in memory."""
    shares_outputs: frozenset[tuple[str, str]]
    """Pairs of outputs of this call that overlap in memory."""

    def copies(self) -> list[Tensor]:
        """Copy what the leaves hold now: dense, on the CPU."""
        return [plain(tensor).clone() for _, tensor in self.leaves]


@dataclass
class ObservedCalls:
    """One sequence of calls. ``leaves[c]`` are dense CPU copies, taken before the next call could change them."""

    seen: list[Observation]
    leaves: list[list[Tensor]]

    def add(self, seen: Observation) -> None:
        self.seen.append(seen)
        self.leaves.append(seen.copies())


def observe(
    call: Callable[..., Any], inputs: Inputs, signature: Signature, *, seed: int, given: Inputs | None = None
) -> Observation:
    """Call with fresh copies of ``inputs`` (or with ``given``, which holds the same values) after setting the seed.

    Whatever ``call`` raises goes to the caller.
    """
    given = fresh(inputs) if given is None else given
    seed_all(seed)
    output = call(*given.args, **given.kwargs)
    before, after = input_tensors(inputs, signature), input_tensors(given, signature)
    measured = as_compared(output)
    leaves = tensors_in(measured, "output")
    changed = tuple(name for (name, a), (_, b) in zip(before, after, strict=False) if not identical(a, b))
    return Observation(
        output=output,
        structure=as_stored(Structure.of(measured)),
        leaves=[*leaves, *((after_name(name), tensor) for name, tensor in after if name in changed)],
        inputs=after,
        changed=changed,
        shares_inputs=overlaps(leaves, after),
        shares_outputs=frozenset(
            (a, b) for i, (a, x) in enumerate(leaves) for b, y in leaves[i + 1 :] if overlap(x, y)
        ),
    )


def after_name(name: str) -> str:
    return f"{name} after the call"


def as_stored(structure: Structure) -> Structure:
    """Make it what comes back from JSON, so that constants compare alike (NaN is not equal to itself; its text is)."""
    return Structure.from_json(structure.to_json())


def overlaps(one: Named, other: Named) -> frozenset[tuple[str, str]]:
    return frozenset((a, b) for a, x in one for b, y in other if overlap(x, y))


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the memory from the first to the last element of one reaches into that of the other."""
    a, b = _extent(one), _extent(other)
    return a is not None and b is not None and one.device == other.device and a[0] < b[1] and b[0] < a[1]


def _extent(tensor: Tensor) -> tuple[int, int] | None:
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.detach().coalesce().values() if tensor.is_coalesced() else tensor.detach()._values()
    if tensor.layout is not torch.strided or tensor.numel() == 0 or tensor.device.type == "meta":
        return None
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # a wrapper subclass has no memory of its own
        return None
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + span * tensor.element_size()
