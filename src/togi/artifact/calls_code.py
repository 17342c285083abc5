"""Names in the code that a module's calls run: ``forward``, and what it names of its class's own methods.

By names alone: nothing is run, and a name means whatever carries it.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from togi.core.user_code import codes_in

FORWARD = "forward"
_ROOTS = (FORWARD, "__call__")
_NAMING = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
"""Operations that name an attribute: ``super()._helper`` has one of its own since Python 3.12."""


def assigned_by_calls(classes: Iterable[type]) -> frozenset[str]:
    """Names of attributes that calls of modules of these classes assign."""
    return frozenset(name for cls in classes for name in _assigned_by(cls))


def _assigned_by(cls: type) -> Iterator[str]:
    open_, seen = [FORWARD], {FORWARD}
    while open_:
        name = open_.pop()
        for member in _members(cls, name):
            if isinstance(member, functools.cached_property):
                yield name
            function = _function_of(member)
            if function is None or _is_torchs(function):
                continue
            for step in _steps(function.__code__):
                if step.opname == "STORE_ATTR":
                    yield step.argval
                elif step.opname in _NAMING and step.argval not in seen:
                    seen.add(step.argval)
                    open_.append(step.argval)


@functools.lru_cache(maxsize=32)  # copies of a block have the same
def named_by_calls(classes: frozenset[type]) -> frozenset[str]:
    """Names that calls of modules of these classes use: of attributes, of globals, and in texts (``getattr(self,
    "scale")``). The functions that they name are followed, but for torch's; objects are asked for methods as modules
    are."""
    names: set[str] = set()
    seen: set[types.CodeType] = set()
    open_ = [function for cls in classes for name in _ROOTS for function in _functions(cls, name)]
    while open_:
        function = open_.pop()
        for code in codes_in(function.__code__):
            if code in seen:
                continue
            seen.add(code)
            new = {*code.co_names, *(constant for constant in code.co_consts if isinstance(constant, str))} - names
            names |= new
            open_ += [method for name in new for cls in classes for method in _functions(cls, name)]
            named = (function.__globals__.get(name) for name in code.co_names)
            open_ += [one for one in named if isinstance(one, types.FunctionType) and not _is_torchs(one)]
    return frozenset(names)


def _members(cls: type, name: str) -> Iterator[Any]:
    """What a class and its bases have under a name, but for what every module has."""
    for base in cls.__mro__:
        if base is not nn.Module and name in vars(base):
            yield vars(base)[name]


def _functions(cls: type, name: str) -> Iterator[types.FunctionType]:
    return filter(None, map(_function_of, _members(cls, name)))


def _function_of(member: Any) -> types.FunctionType | None:
    """The function of a method or property, without what decorators put round it."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, functools.cached_property):
        member = member.func
    elif isinstance(member, staticmethod | classmethod):
        member = member.__func__
    function = inspect.unwrap(member) if isinstance(member, types.FunctionType) else None
    return function if isinstance(function, types.FunctionType) else None


def _is_torchs(function: types.FunctionType) -> bool:
    return (function.__module__ or "").startswith("torch.")  # what torch.fx makes is in no module


def _steps(code: types.CodeType) -> Iterator[dis.Instruction]:
    for inner in codes_in(code):
        yield from dis.get_instructions(inner)
