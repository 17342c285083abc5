"""Facts of samples: the names and structure of their arguments, sizes that vary, and sizes that vary together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from togi.core.errors import SubjectError, nearest
from togi.core.records import Record, TensorFacts
from togi.subject.common_structure import in_common
from togi.subject.inputs import Dynamic, Inputs
from togi.subject.structure import Structure

if TYPE_CHECKING:
    import torch
    from torch import nn


Common = Callable[[Sequence[Any]], Structure | None]
"""What the values of one argument have in common."""


STRIDED = "strided"


def layout_of(tensor: torch.Tensor) -> str:
    """``strided``, ``sparse_coo``, ``jagged``, ...; ``nested`` for a strided one of tensors of several sizes, which
    has no shape."""
    layout = str(tensor.layout).removeprefix("torch.")
    return "nested" if layout == STRIDED and tensor.is_nested else layout


class Relation(Record):
    """Two dynamic sizes that were seen to vary together: equal, or a constant apart, in every sample."""

    one: tuple[int, int]
    """Flat input and dimension."""
    other: tuple[int, int]
    more: int
    """By how much ``one`` is larger."""


class Followed(Record):
    """A size that a number of a call was seen to follow: equal, or a constant apart, in every sample."""

    input: int
    """Flat input."""
    dim: int
    more: int
    """By how much the number is larger."""

    def number(self, tensors: Sequence[Any]) -> Any:
        """What it is in a call with these flat inputs, a symbol where sizes are symbols; None where the input is not a
        tensor with such a dimension."""
        shape = getattr(tensors[self.input], "shape", ())
        return shape[self.dim] + self.more if self.dim < len(shape) else None


def parameters_of(module: nn.Module) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        schema = getattr(module.forward, "schema", None)  # TorchScript methods have one instead of a signature
        return tuple(argument.name for argument in schema.arguments[1:] if not argument.kwarg_only) if schema else ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def none_by_default(module: nn.Module) -> tuple[str, ...]:
    """Parameters of ``forward`` that are None where they are not given, under all names of ``positional_names``."""
    from togi.subject.pure import Pure
    from togi.subject.state import WithState

    known = parameters_of(module)
    while isinstance(module, Pure | WithState):
        module = module.module
    try:
        parameters = inspect.signature(module.forward).parameters.values()
        names = [p.name for p in parameters if p.default is None]
    except (TypeError, ValueError):
        schema = getattr(module.forward, "schema", None)
        arguments = schema.arguments[1:] if schema else ()
        names = [a.name for a in arguments if a.has_default_value() and a.default_value is None]
    of_inner = parameters_of(module)
    unnamed = zip(of_inner[len(known) :], positional_names(known, len(of_inner))[len(known) :], strict=True)
    return (*names, *(given for name, given in unnamed if name in names))


def positional_names(parameters: Sequence[str], count: int) -> tuple[str, ...]:
    """Names of the first ``count`` positional arguments; ``*args`` beyond the named ones are ``args_3``..."""
    return tuple(parameters[i] if i < len(parameters) else f"args_{i}" for i in range(count))


def values_of(sample: Inputs) -> list[Any]:
    return [*sample.args, *(sample.kwargs[name] for name in sorted(sample.kwargs))]


def arguments_of_all(samples: Sequence[Inputs], common: Common = in_common) -> tuple[Structure, ...]:
    """The structure of each argument. Raises SubjectError where the samples have none in common, as ``common`` says."""
    structures = arguments_in_common(samples, common)
    if structures is None:
        number = next(n for n in range(2, len(samples) + 1) if arguments_in_common(samples[:n], common) is None)
        raise SubjectError(
            f"sample {number} is called differently from sample 1 (other arguments, nesting or constants). "
            "All samples must be calls of one form; tune each form as a subject of its own."
        )
    return structures


def arguments_in_common(samples: Sequence[Inputs], common: Common = in_common) -> tuple[Structure, ...] | None:
    """The structure of each argument: first the positional ones, then the keywords, sorted. None where calls have none
    in common."""
    if len({(len(sample.args), tuple(sorted(sample.kwargs))) for sample in samples}) > 1:
        return None
    of_each = [common(values) for values in zip(*map(values_of, samples), strict=True)]
    structures = tuple(structure for structure in of_each if structure is not None)
    return structures if len(structures) == len(of_each) else None


def flat(entries: Iterable[tuple[str, Structure, Any]]) -> list[tuple[str, torch.Tensor]]:
    return [
        (path, item)
        for name, structure, value in entries
        for path, leaf, item in structure.walk(value, name)
        if leaf.kind == "tensor"
    ]


def tensor_facts(samples: Sequence[list[tuple[str, torch.Tensor]]], dynamic: Dynamic) -> tuple[TensorFacts, ...]:
    facts = []
    for entries in zip(*samples, strict=True):
        name, first = entries[0]
        tensors = [tensor for _, tensor in entries]
        if any(tensor.dim() != first.dim() or tensor.dtype != first.dtype for tensor in tensors):
            raise SubjectError(
                f"{name} differs between samples in dtype or number of dimensions: tune each form as its own subject"
            )
        declared = {dim % first.dim() for dim in dynamic.get(name, ())}
        shape = tuple(
            None if dim in declared or any(t.shape[dim] != size for t in tensors) else int(size)
            for dim, size in enumerate(first.shape)
        )
        facts.append(TensorFacts(name=name, dtype=str(first.dtype).removeprefix("torch."), shape=shape))
    return tuple(facts)


def relations_between(
    samples: Sequence[list[tuple[str, torch.Tensor]]], facts: Sequence[TensorFacts], dynamic: Dynamic
) -> tuple[Relation, ...]:
    """Each size that differs between the samples, with the first of another input that it is a constant apart from.
    Pictures of two squares need not be squares, and what is declared dynamic is so by itself."""
    relations: list[Relation] = []
    leads: dict[tuple[int, int], list[int]] = {}
    for i, dim in ((i, dim) for i, tensor in enumerate(facts) for dim, size in enumerate(tensor.shape) if size is None):
        sizes = [sample[i][1].shape[dim] for sample in samples]
        if len(set(sizes)) == 1 or facts[i].name in dynamic:
            continue
        apart = {
            lead: differences.pop()
            for lead, lead_sizes in leads.items()
            if lead[0] != i
            and len(differences := {size - lead_size for size, lead_size in zip(sizes, lead_sizes, strict=True)}) == 1
        }
        if len(apart) == 1:  # of several, as both sides of squares are, nobody knows which it belongs to
            ((lead, more),) = apart.items()
            relations.append(Relation(one=(i, dim), other=lead, more=more))
        else:
            leads[i, dim] = sizes
    return tuple(relations)


def carried_numbers(sample: Inputs, arguments: Sequence[Structure]) -> list[int]:
    """The numbers of a call that are carried, in order."""
    pairs = zip(arguments, values_of(sample), strict=True)
    return [number for structure, value in pairs if structure.carries for number in structure.carried_numbers(value)]


def sizes_followed(
    samples: Sequence[Inputs], arguments: Sequence[Structure], tensors: Sequence[Sequence[torch.Tensor]]
) -> tuple[Followed, ...] | None:
    """The size that each carried number of the samples follows. None where one follows no size. ``tensors``: the flat
    inputs of each sample."""
    places = [(i, dim) for i, tensor in enumerate(tensors[0]) for dim in range(tensor.dim())]
    followed = []
    for numbers in zip(*(carried_numbers(sample, arguments) for sample in samples), strict=True):
        for i, dim in places:
            apart = {number - own[i].shape[dim] for number, own in zip(numbers, tensors, strict=True)}
            if len(apart) == 1 and len(set(numbers)) > 1:
                followed.append(Followed(input=i, dim=dim, more=apart.pop()))
                break
        else:
            return None
    return tuple(followed)


def check_dynamic(dynamic: Dynamic, inputs: Sequence[tuple[str, torch.Tensor]]) -> None:
    """A misspelt input name or a dimension that is not there would silently leave a size fixed."""
    shapes = {name: tuple(tensor.shape) for name, tensor in inputs}
    for name, dims in dynamic.items():
        if name not in shapes:
            raise SubjectError(
                f"dynamic names the input '{name}'{nearest(name, shapes) or '.'} The inputs: {', '.join(shapes)}."
            )
        wrong = [dim for dim in dims if not -len(shapes[name]) <= dim < len(shapes[name])]
        if wrong:
            raise SubjectError(f"dynamic names dimension {wrong[0]} of '{name}', whose shape is {shapes[name]}.")
