"""State that a module keeps from call to call besides parameters and buffers. Numbers can be put back; all else cannot,
and is named."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from togi.core.errors import SubjectError
from togi.core.quantities import first_line
from togi.subject.behaviour import same
from togi.torch_internals.tensors import tensors_of

TORCHS_OWN = frozenset(vars(nn.Module()))
"""Attributes of every module."""
_NAMED = 3


def remembered(module: nn.Module) -> dict[str, Any]:
    """A copy of every attribute that is neither parameter nor buffer, by its name (``encoder.hidden``). Leaves out
    what is not a number, text or tensor, alone or in a list, tuple, deque or dict."""
    return {name: _copy(value) for name, value in _attributes(module)}


def changed_since(before: Mapping[str, Any], module: nn.Module) -> list[str]:
    """Names whose values are not what ``remembered`` found."""
    now = remembered(module)
    return sorted(name for name in now.keys() | before.keys() if not _alike(before.get(name), now.get(name)))


def numbers_of(module: nn.Module) -> dict[str, bool | int | float]:
    """The attributes that are plain numbers (a count of calls, a temperature), by their names."""
    return {name: value for name, value in _attributes(module) if type(value) in (bool, int, float)}


def put_numbers(module: nn.Module, numbers: Mapping[str, bool | int | float]) -> None:
    """Give a module, or a copy of it, the numbers that ``numbers_of`` found. What came since stays."""
    now = numbers_of(module)
    for name, number in numbers.items():
        if name not in now or now[name] != number:
            owner, _, attribute = name.rpartition(".")
            vars(module.get_submodule(owner))[attribute] = number


def kept_with_graph(module: nn.Module) -> list[str]:
    """Names of attributes that hold results with the graph that made them."""
    values = (*_attributes(module), *module.named_buffers())
    return [name for name, value in values if any(t.grad_fn is not None for t in tensors_of(value))]


def why_not_twice(error: BaseException, module: nn.Module) -> str:
    """The error of a step that ran once, and fails the second time."""
    names = kept_with_graph(module)[:_NAMED]
    kept_names = f"{', '.join(names)}, with the graph" if names else "something, such as a hidden state with its graph,"
    return (
        f"the step ran, and failed the second time with the same inputs ({first_line(error)}). It keeps {kept_names} "
        "from the run before: detach it, or reset it in the step."
    )


@contextmanager
def second_run(module: nn.Module) -> Iterator[None]:
    """Enter it round a run that is not the first. Raises SubjectError where it goes back through the graph of the one
    before."""
    try:
        yield
    except RuntimeError as error:
        if not kept_with_graph(module):
            raise
        raise SubjectError(why_not_twice(error, module)) from error


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if attribute not in TORCHS_OWN:
                yield f"{name}.{attribute}".lstrip("."), value


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple | deque):
        return [_copy(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _copy(item) for key, item in value.items()}
    return value if isinstance(value, bool | int | float | str) else None


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same([one], [other])
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)
