"""Nested values of tensors: the tensors in them, and the same values with parts replaced."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from togi.core.quantities import a_type
from togi.subject.classes import OTHER_ATTRIBUTES, is_of_items, kept_by_class
from togi.subject.containers import SEQUENCES, WHOLE, Items, items_of, maker, put_in
from togi.subject.leaves import CONSTANTS, holds_nothing

if TYPE_CHECKING:
    from torch import Tensor

ENTER = object()
"""The answer to ``replaced`` for a part that it shall look into."""
Folded = TypeVar("Folded")


def folded(
    value: Any,
    leaf: Callable[[Any], Folded],
    container: Callable[[Any, Items, list[Folded]], Folded],
    around: tuple[int, ...] = (),
) -> Folded:
    """``container(value, items, answers for its children)``, or ``leaf(value)`` where nothing can be taken out of it.
    ``around``: identities of the containers that it lies in; one that holds itself is a leaf."""
    items = None if holds_nothing(value) or id(value) in around else items_of(value)
    if items is None:
        return leaf(value)
    inner = (*around, id(value))
    return container(value, items, [folded(child, leaf, container, inner) for child in items.children])


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a nested value, in the order of ``Structure.walk``; none of what is opaque."""
    tensors: list[Tensor] = []
    _collect(value, tensors, ())
    return tensors


def _collect(value: Any, tensors: list[Tensor], around: tuple[int, ...]) -> bool:
    """Add the tensors of a value. True if all of it can be taken apart. Not ``folded``, which takes three times as
    long: programs ask in every step."""
    import torch

    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return True
    if holds_nothing(value):
        return True
    items = None if id(value) in around else items_of(value)
    if items is None:
        return False
    before = len(tensors)
    whole = True
    for child in items.children:
        whole &= _collect(child, tensors, (*around, id(value)))
    if not whole and items.kind in WHOLE:
        del tensors[before:]
    return whole


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A nested value with every tensor replaced by ``change(tensor)``: new containers, the same opaque values."""
    import torch

    return replaced(value, lambda part: change(part) if isinstance(part, torch.Tensor) else ENTER, new=True)


def exchanged(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A nested value with every tensor exchanged for ``change(tensor)``. Lists, dicts and objects stay the ones that
    they are, and hold the others: somebody else may have them, too."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    items = None if holds_nothing(value) else opened(value)
    if items is None:
        return value
    children = [exchanged(child, change) for child in items.children]
    others = {id(before): now for before, now in zip(items.children, children, strict=True) if now is not before}
    return value if not others or put_in(value, items.kind, items.keys, children) else substituted(value, others)


def substituted(value: Any, table: Mapping[int, Any]) -> Any:
    """A nested value with what ``table`` names by identity (``id(part)``) replaced."""
    return replaced(value, lambda part: table.get(id(part), ENTER))


def put_back(value: Any, table: Mapping[str, Any]) -> Any:
    """A nested value that nobody else holds, with the strings that ``table`` names replaced.

    Dicts are changed where they stand: transformers' ModelOutput takes longer to make than a small part of a program
    takes to run.
    """
    return replaced(value, lambda part: table.get(part, ENTER) if isinstance(part, str) else ENTER, in_place=True)


def replaced(value: Any, change: Callable[[Any], Any], *, new: bool = False, in_place: bool = False) -> Any:
    """A nested value with every part that ``change`` does not answer with ``ENTER`` replaced by its answer.

    A container in which nothing changed stays the same object, unless ``new`` ones are wanted; with ``in_place`` a dict
    does in any case.
    """
    import torch

    answer = change(value)
    if answer is not ENTER:
        return answer
    items = None if isinstance(value, (torch.Tensor, *CONSTANTS)) else opened(value)
    if items is None:
        return value
    children = [replaced(child, change, new=new, in_place=in_place) for child in items.children]
    if not new and all(changed is child for changed, child in zip(children, items.children, strict=True)):
        return value
    if in_place and isinstance(value, dict):
        for key, changed, child in zip(items.keys, children, items.children, strict=True):
            if changed is not child:
                value[key] = changed
        return value
    if items.kind in SEQUENCES or kept_by_class(value) is not None:
        return _with_what_it_keeps(value, items, children)
    if items.context == OTHER_ATTRIBUTES:  # only its own class knows what else it keeps
        return _made_by_its_class(type(value), dict(zip(map(str, items.keys), children, strict=True)))
    return maker(items.kind, items.keys, items.context, type(value))(children)


def _with_what_it_keeps(value: Any, items: Items, children: list[Any]) -> Any:
    """Another list, tuple or dict with a factory, of these parts and with what ``value`` keeps besides its own. No line
    of a class of lists or tuples runs."""
    cls = type(value)
    if isinstance(value, defaultdict):
        made = copy.copy(value)
        made.update(zip(items.keys, children, strict=True))
        return made
    if cls in (list, tuple) or is_of_items(cls):
        return cls(children)
    base: Any = list if isinstance(value, list) else tuple
    made = base.__new__(cls, children)
    if base is list:
        list.extend(made, children)
    if hasattr(value, "__dict__"):
        vars(made).update(vars(value))
    return made


def _made_by_its_class(cls: Any, named: dict[str, Any]) -> Any:
    try:
        return cls(**named)
    except TypeError:
        return cls(named)


def opened(value: Any) -> Items | None:
    """The parts of a container that can be put together again from others."""
    items = items_of(value)
    return items if items is not None and (items.kind not in WHOLE or _collect(value, [], ())) else None


def is_opaque(value: Any) -> bool:
    """Whether it is neither a leaf that is known nor a container that can be put together again."""
    return not holds_nothing(value) and opened(value) is None


def assign(value: Any, other: Any) -> None:
    """Make a list, dict or object hold what ``other``, of the same kind, holds.

    Raises TypeError for what cannot be changed in place.
    """
    if isinstance(value, list):
        value[:] = other
    elif isinstance(value, dict):
        value.clear()
        value.update(other)
    elif hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update(vars(other))
    else:
        raise TypeError(f"{a_type(value)} cannot be changed in place")
