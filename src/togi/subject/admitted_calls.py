"""Checks the flat inputs of a call against a signature, with all that does not depend on the call looked up before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from togi.subject.conditions import condition, sizes_in
from togi.subject.domain import refusals_on_device
from togi.subject.refused_calls import (
    not_contiguous,
    other_input,
    shared_memory,
    sizes_apart,
    unmet_condition,
    values_outside,
)
from togi.subject.sample_facts import STRIDED

if TYPE_CHECKING:
    from torch import Tensor

    from togi.subject.signature import Signature

Keeps = Callable[[int, Any], bool]
"""Whether the flat input at this position, a deferred tensor, is the program's own last answer, unchanged."""
_SIZES_REMEMBERED = 1000


class AdmittedCalls:
    """The calls that a signature admits: dtypes, devices, layouts, sizes and values of its flat inputs."""

    def __init__(self, signature: Signature) -> None:
        import torch

        from togi.torch_internals.deferred import Deferred

        layouts = signature.layouts or (STRIDED,) * len(signature.devices)

        self._signature = signature
        self._deferred = Deferred
        self._inputs = [
            (
                getattr(torch, facts.dtype, None),
                _on(device),
                getattr(torch, layout, None),
                len(facts.shape),
                [(dim, size) for dim, size in enumerate(facts.shape) if size is not None],
            )
            for facts, device, layout in zip(signature.inputs_facts, signature.devices, layouts, strict=True)
        ]
        self._related = [(*relation.one, *relation.other, relation.more, relation) for relation in signature.relations]
        self._contiguous = signature.contiguous
        self._written = signature.written
        self._restricted = signature.restricted
        self._on_device = any(signature.devices[at] != "cpu" for at, _ in self._restricted)
        self.conditions = [(text, condition(text)) for text in signature.conditions]
        self._conditioned_sizes = list(dict.fromkeys(size for text in signature.conditions for size in sizes_in(text)))
        self._sizes_met: set[tuple[int, ...]] = set()

    def check(self, tensors: Sequence[Any], keeps: Keeps | None) -> None:
        """Raises TypeError or ValueError naming the input, what it is, what is accepted, and the fix."""
        import torch

        shapes = []
        for position, (tensor, known) in enumerate(zip(tensors, self._inputs, strict=False)):
            dtype, is_there, layout, dims, fixed = known
            if not (
                isinstance(tensor, torch.Tensor)
                and tensor.dtype is dtype
                and is_there(tensor)
                and tensor.layout is layout
                and not (tensor.is_nested and layout is torch.strided)  # such a one has no shape
                and tensor.dim() == dims
            ):
                raise other_input(self._signature, position, tensor)
            sizes = tensor.shape
            shapes.append(sizes)
            for dim, size in fixed:
                if sizes[dim] != size:
                    raise other_input(self._signature, position, tensor)
            if self._contiguous and layout is torch.strided and not tensor.is_contiguous():
                raise not_contiguous(self._signature, position, tensor)
        for one, dim, other, along, more, relation in self._related:
            if shapes[one][dim] - shapes[other][along] != more:
                raise sizes_apart(self._signature, relation, tensors)
        if self.conditions:
            self._check_conditions(tensors, tuple([shapes[i][dim] for i, dim in self._conditioned_sizes]))
        if self._written:
            self._check_memory(tensors)
        if self._restricted:
            self._check_domains(tensors, keeps)

    def _check_memory(self, tensors: Sequence[Tensor]) -> None:
        """That nothing which the call overwrites lies in the memory of another input: an engine would read that as it
        was before."""
        from togi.subject.plain_tensors import extent

        if len(set(map(_memory, tensors))) == len(tensors):
            return
        extents = [extent(tensor) or (0, 0) for tensor in tensors]
        for at in self._written:
            start, end = extents[at]
            for other, (begins, ends) in enumerate(extents):
                if other != at and begins < end and start < ends:
                    raise shared_memory(self._signature, at, other)

    def _check_domains(self, tensors: Sequence[Any], keeps: Keeps | None) -> None:
        deferred, looked_at = self._deferred, []
        for at, domain in self._restricted:
            tensor = tensors[at]
            if type(tensor) is deferred:
                if keeps is not None and keeps(at, tensor):
                    continue
                tensor = tensor.values()  # whose engine goes on from it as ever
            if self._on_device:
                looked_at.append((at, domain, tensor))
            elif outside := domain.refusal(tensor):
                raise values_outside(self._signature, at, outside)
        if looked_at:
            found = refusals_on_device([(domain, tensor) for _, domain, tensor in looked_at])
            for (at, _, _), outside in zip(looked_at, found, strict=True):
                if outside:
                    raise values_outside(self._signature, at, outside)

    def _check_conditions(self, tensors: Sequence[Any], sizes: tuple[int, ...]) -> None:
        if sizes in self._sizes_met:
            return
        for text, holds in self.conditions:
            if not holds(tensors):
                raise unmet_condition(self._signature, text, tensors)
        if len(self._sizes_met) < _SIZES_REMEMBERED:
            self._sizes_met.add(sizes)


def _on(device: str) -> Callable[[Tensor], bool]:
    """Make the test whether a tensor is on a device of this kind."""
    if device in ("cpu", "cuda"):
        return attrgetter(f"is_{device}")  # a quarter of the time that its ``device.type`` takes
    return lambda tensor: tensor.device.type == device


def _memory(tensor: Tensor) -> int:
    """Another number for each storage."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # sparse, or deferred: it has none
        return id(tensor)
