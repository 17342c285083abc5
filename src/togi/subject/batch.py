"""The batch of a call: which dimension of which inputs holds its samples, and the same call with more or fewer of them.

What is asked for is a size; that the module, or what was tuned, takes calls of that size is left to the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from togi.core.errors import SubjectError
from togi.core.records import Record, TensorFacts
from togi.subject.inputs import Dynamic, Inputs, Subject
from togi.subject.signature import Signature

if TYPE_CHECKING:
    from torch import Tensor

Shape = Sequence[int | None]


class Batch(Record):
    """The places of the samples of a call, and how many a call is to have."""

    dims: tuple[tuple[int, int], ...]
    """Flat input and dimension."""
    size: int = 1

    def of(self, call: Inputs, signature: Signature) -> Inputs:
        """The call with so many samples: they are repeated, or left out."""
        tensors = signature.flatten_inputs(call.args, call.kwargs)
        for i, dim in self.dims:
            tensors[i] = rows(tensors[i], self.size, dim)
        args, kwargs = signature.build_inputs(tensors)
        return Inputs(args, kwargs)

    def in_words(self, signature: Signature) -> str:
        """``dimension 0 of x and mask``."""
        inputs = signature.inputs_facts
        by_dim = {dim: [inputs[i].name for i, of in self.dims if of == dim] for _, dim in self.dims}
        return " and ".join(f"dimension {dim} of {' and '.join(names)}" for dim, names in by_dim.items())


class BatchRequest(Record):
    """A request for the batch of a subject."""

    signature: Signature


def batch_of(subject: Subject, request: BatchRequest) -> Batch:
    """The batch of a subject's calls. Raises SubjectError as ``find_batch`` does."""
    calls = [request.signature.flatten_inputs(call.args, call.kwargs) for call in subject.inputs]
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in calls]
    return find_batch(request.signature.inputs_facts, shapes, subject.dynamic or {})


def find_batch(inputs: Sequence[TensorFacts], calls: Sequence[Sequence[Shape]], dynamic: Dynamic) -> Batch:
    """The dimensions that the subject calls a batch; else dimension 0 of the inputs in which it varies; else, where no
    size varies, dimension 0 of all.

    A length that varies is not taken for the batch, since its figures would look as good.

    Args:
        inputs: None in a shape is a size that varies.
        calls: the shapes of the inputs in each sample.
        dynamic: as the subject declares it, with names: ``{"x": {1: "batch"}}``.

    Raises SubjectError if that is not a dimension, or these differ in size within a call.
    """
    dims = _named(inputs, dynamic) or _first(inputs)
    sizes = [{shapes[i][dim] for i, dim in dims} for shapes in calls]
    if not dims or any(len(lengths) != 1 or 0 in lengths for lengths in sizes):
        raise SubjectError(_unclear(inputs))
    return Batch(dims=tuple(dims))


def shared_rows(sample: Inputs) -> int | None:
    """The size of dimension 0, where all tensors that have one share it; else None."""
    sizes = {tensor.shape[0] for tensor in sample.tensors() if tensor.dim()}
    return sizes.pop() if len(sizes) == 1 else None


def sliced_rows(sample: Inputs, rows: slice) -> Inputs:
    """These rows of every tensor that has dimensions: views."""
    return sample.map(lambda tensor: tensor[rows] if tensor.dim() else tensor)


def rows(tensor: Tensor, count: int, dim: int = 0) -> Tensor:
    """So many along a dimension: those that are there in turn, or the first of them."""
    import torch

    repeats = -(-count // tensor.shape[dim])
    return torch.cat([tensor] * repeats, dim).narrow(dim, 0, count).clone()


def _named(inputs: Sequence[TensorFacts], dynamic: Dynamic) -> list[tuple[int, int]]:
    return [
        (i, dim % len(facts.shape))
        for i, facts in enumerate(inputs)
        if isinstance(names := dynamic.get(facts.name), Mapping)
        for dim, name in names.items()
        if "batch" in name.lower()
    ]


def _first(inputs: Sequence[TensorFacts]) -> list[tuple[int, int]]:
    varies = any(None in facts.shape for facts in inputs)
    return [(i, 0) for i, facts in enumerate(inputs) if facts.shape and (facts.shape[0] is None or not varies)]


def _unclear(inputs: Sequence[TensorFacts]) -> str:
    shapes = [f"{facts.name} ({', '.join('any' if n is None else str(n) for n in facts.shape)})" for facts in inputs]
    name = inputs[0].name if inputs else "x"
    return (
        f"it is not clear which dimension is the batch: the inputs are {', '.join(shapes) or 'no tensors'}, and more "
        "of something else would be measured as more samples. Name it where the subject declares the sizes that vary, "
        f"togi.Subject(module, samples, dynamic={{'{name}': {{0: 'batch'}}}}), and give an artifact together with its "
        "subject"
    )
