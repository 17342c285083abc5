"""Errors of calls that a signature does not admit: what is given, what is accepted, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from togi.core.quantities import a_type
from togi.subject.conditions import at_least, sizes_in
from togi.subject.sample_facts import STRIDED, Followed, Relation, layout_of
from togi.subject.structure import Structure

if TYPE_CHECKING:
    from torch import Tensor

    from togi.subject.signature import Signature


def other_input(signature: Signature, position: int, tensor: Any) -> TypeError | ValueError:
    """An input of another type, device or shape than was proven."""
    import torch

    facts = signature.inputs_facts[position]
    device = signature.devices[position]
    if not isinstance(tensor, torch.Tensor):
        return TypeError(f"{facts.name} is {a_type(tensor)}, expected a {facts.dtype} tensor")
    if str(tensor.dtype).removeprefix("torch.") != facts.dtype:
        return TypeError(f"{facts.name} is {tensor.dtype}, but was tuned and proven for torch.{facts.dtype}")
    if tensor.device.type != device:
        return ValueError(
            f"{facts.name} is on {tensor.device}, but was tuned and proven on {device}: move it there with "
            f".to('{device}')"
        )
    layout = signature.layouts[position] if signature.layouts else STRIDED
    if (given := layout_of(tensor)) != layout:
        return TypeError(f"{facts.name} is a {given} tensor, but was tuned and proven as a {layout} one")
    shape = ", ".join("any" if size is None else str(size) for size in facts.shape)
    return ValueError(
        f"{facts.name} has shape {tuple(tensor.shape)}, but was tuned and proven for ({shape}). "
        "To vary a size, tune with samples of several sizes or with dynamic={name: dims}."
    )


def not_contiguous(signature: Signature, position: int, tensor: Tensor) -> ValueError:
    """An input that lies otherwise in memory than a graph that reads it by strides was captured for."""
    return ValueError(
        f"{signature.inputs_facts[position].name} is not contiguous (its strides are {tuple(tensor.stride())}), but "
        "the model reads memory by strides (as_strided), and was tuned and proven with contiguous inputs: give "
        ".contiguous() of it, or call the original"
    )


def shared_memory(signature: Signature, written: int, other: int) -> ValueError:
    """A call that overwrites an input, and thereby another."""
    names = [signature.inputs_facts[at].name for at in (written, other)]
    return ValueError(
        f"{names[0]} and {names[1]} share memory, and the call writes into {names[0]}: it was tuned and proven with "
        "inputs that lie apart. Give a copy of one, or call the original"
    )


def sizes_apart(signature: Signature, relation: Relation, tensors: Sequence[Tensor]) -> ValueError:
    """Two sizes that do not belong together."""
    (i, dim), (j, along) = relation.one, relation.other
    apart = f"{abs(relation.more)} {'more' if relation.more > 0 else 'less'} than" if relation.more else "the same as"
    return ValueError(
        f"{signature.inputs_facts[i].name} has {tensors[i].shape[dim]} in dimension {dim}, where "
        f"{signature.inputs_facts[j].name} has {tensors[j].shape[along]} in dimension {along}, but it had "
        f"{apart} that in every sample that it was tuned and proven with. To vary both by themselves, tune with "
        "samples in which they do."
    )


def unmet_condition(signature: Signature, text: str, tensors: Sequence[Tensor]) -> ValueError:
    """Sizes for which the captured graph does not hold."""
    sizes = list(dict.fromkeys(sizes_in(text)))
    i, dim = sizes[0]
    if text == at_least(1, i, dim):
        return ValueError(
            f"{signature.inputs_facts[i].name} is empty (dimension {dim}), as it was in no sample that was tuned and "
            "proven with. Call the original for that, or tune with a sample that is empty too."
        )
    actual = " and ".join(
        f"{signature.inputs_facts[i].name}.shape[{dim}] is {tensors[i].shape[dim]}" for i, dim in sizes
    )
    (words,) = signature.in_words([text])
    return ValueError(
        f"{actual}, but what was proven holds where {words}: for other sizes the original computes "
        "something else. Call the original for those, or tune it for them as a subject of its own."
    )


def values_outside(signature: Signature, position: int, why: str) -> ValueError:
    """Values that may be answered otherwise than by the original."""
    return ValueError(
        f"{signature.inputs_facts[position].name} {why}: beyond that the engine may answer otherwise than the "
        "original. Call the original for such values, or tune with a sample that holds them."
    )


def other_structure(signature: Signature, name: str, structure: Structure, value: Any) -> TypeError:
    """An argument of another structure or with another constant."""
    form = f"It was tuned for calls of the form ({', '.join(signature.names)})."
    return TypeError(f"{_difference(name, structure, value)}. {form}")


def number_apart(signature: Signature, followed: Followed, number: int) -> TypeError:
    """A number that is not the size that it was in every sample."""
    more = f"{abs(followed.more)} {'more' if followed.more > 0 else 'less'} than " * bool(followed.more)
    return TypeError(
        f"a number in its arguments is {number}, where it was {more}the size of "
        f"{signature.inputs_facts[followed.input].name} in dimension {followed.dim} in every sample that it was tuned "
        "and proven with"
    )


def _difference(name: str, structure: Structure, value: Any) -> str:
    """The place at which a value has another structure or another constant."""
    try:
        for path, leaf, item in structure.walk(value, name):
            if leaf.kind != "tensor" and not leaf.admits(item):
                return f"{path} is {item!r}, expected {leaf.describe()}"
            if leaf.kind == "tensor" and not hasattr(item, "shape"):
                return f"{path} is {a_type(item)}, expected a tensor"
    except ValueError as error:
        return str(error)
    return f"{name} differs"
