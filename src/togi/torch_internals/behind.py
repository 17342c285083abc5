"""Finds the modules that a callable runs: those of a bound method, a partial, a wrapper or a closure.

Behind it: ``_torchdynamo_orig_callable`` of what torch.compile returns for a function (by ``uncompiled``). When it
goes: ``__wrapped__`` says the same.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from togi.core.user_code import names_in
from togi.torch_internals.modules import uncompiled

__all__ = ["callables_behind", "modules_behind", "parts_behind"]


def modules_behind(function: Any) -> list[nn.Module]:
    """The modules that it runs, as far as its own references show them; a module itself."""
    return [each for each in callables_behind(function) if isinstance(each, nn.Module)]


def parts_behind(function: Any) -> dict[str, nn.Module]:
    """The modules behind it and all their parts, each once, by path."""
    parts: dict[str, nn.Module] = {}
    known: set[nn.Module] = set()
    for at, module in enumerate(modules_behind(function)):
        root = f"{type(module).__name__} {at + 1}: " if at else ""
        for path, part in module.named_modules():
            if part not in known:
                parts[root + path] = part
                known.add(part)
    return parts


def callables_behind(function: Any) -> list[Any]:
    """The callable, and whatever it refers to that can be called; a module is not taken apart."""
    found: dict[int, Any] = {}
    waiting = [function]
    while waiting:
        each = waiting.pop(0)
        if id(each) not in found and callable(each) and not isinstance(each, type):
            found[id(each)] = each
            waiting += () if isinstance(each, nn.Module) else _referred_to(each)
    return list(found.values())


def _referred_to(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from _items((function.func, function.args, function.keywords))
        return
    yield uncompiled(function)
    yield getattr(function, "__wrapped__", None)
    for cell in getattr(function, "__closure__", None) or ():
        if cell != types.CellType():  # one that holds nothing yet cannot be read
            yield from _items([cell.cell_contents])
    plain = getattr(function, "__func__", function)
    if isinstance(plain, types.FunctionType):
        used = (plain.__globals__.get(name) for name in names_in(plain.__code__))
        yield from (each for each in used if isinstance(each, nn.Module))
    owner = getattr(function, "__self__", function)
    if not isinstance(owner, types.FunctionType | types.ModuleType | type):
        yield from [owner] if isinstance(owner, nn.Module) else _attributes(owner)


def _attributes(owner: object) -> Iterator[Any]:
    """The modules that an object of any other class has."""
    attributes = getattr(owner, "__dict__", {}).values()
    yield from (each for each in _items(attributes) if isinstance(each, nn.Module))


def _items(values: Iterable[Any]) -> Iterator[Any]:
    """Values, and those in lists and dicts among them."""
    for value in values:
        if isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, list | tuple):
            yield from value
        else:
            yield value
