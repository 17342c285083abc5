"""Names in the code that a module's calls run: ``forward``, and what it names of its class's own methods.

By names alone: nothing is run, and a name means whatever carries it.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from togi.core.user_code import Origin, codes_in, origin

FORWARD = "forward"
_ROOTS = (FORWARD, "__call__")
_NAMING = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
"""Operations that name an attribute: ``super()._helper`` has one of its own since Python 3.12."""
_DEEPEST_MODULE = 3
"""Modules that are followed below each other: ``package.part.function``."""


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


def own_code(
    classes: Collection[type], named: Collection[str], assigned: Collection[str], held: Iterable[Any] = ()
) -> tuple[list[types.FunctionType], list[tuple[str, Any]]]:
    """The user's own code that calls of modules of these classes run, and the numbers and tensors that it names:
    globals, and attributes of the classes. In no order that means anything.

    Args:
        named: the names that calls use (``named_by_calls``).
        assigned: those of attributes that they assign.
        held: what the modules hold under these names, functions among it.
    """
    bases = {base for cls in classes for base in cls.__mro__ if base is not nn.Module}
    named = {*named, *_ROOTS}
    open_ = [*held, *(member for base in bases for name, member in vars(base).items() if name in named)]
    functions: dict[int, types.FunctionType] = {}
    numbers: list[tuple[str, Any]] = []
    while open_:
        function = _function_of(open_.pop())
        if function is None or id(function) in functions or not _is_own(function):
            continue
        functions[id(function)] = function
        for name, value in _named_globals(function):
            if isinstance(value, type):
                open_ += vars(value).values()
            elif _is_number(value):
                numbers.append((name, value))
            else:
                open_.append(value)
    for base in bases:
        if any(inner is not None and _is_own(inner) for inner in map(_function_of, vars(base).values())):
            members = ((name, value) for name, value in vars(base).items() if name in named and name not in assigned)
            numbers += [(f"{base.__qualname__}.{name}", value) for name, value in members if _is_number(value)]
    return list(functions.values()), numbers


def _named_globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function names among its globals and does not assign, and in the user's own modules there."""
    steps = list(_steps(function.__code__))
    attributes = sorted({step.argval for step in steps if step.opname in _NAMING})
    names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    assigned = {step.argval for step in steps if step.opname in ("STORE_GLOBAL", "STORE_NAME")}

    def inside(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, types.ModuleType):
            yield name, value
        elif depth and origin(getattr(value, "__file__", None) or "<built in>") is Origin.USER:
            for inner in attributes:
                if inner in vars(value):
                    yield from inside(f"{name}.{inner}", vars(value)[inner], depth - 1)

    for name in sorted(names - assigned):
        yield from inside(name, function.__globals__.get(name), _DEEPEST_MODULE)


def _is_own(function: types.FunctionType) -> bool:
    """Whether it stands in a file of the user's, or was typed in."""
    return origin(function.__code__.co_filename) is Origin.USER


def _is_number(value: Any) -> bool:
    """Or a tensor, or some of them."""
    if type(value) in (tuple, list):
        return bool(value) and all(map(_is_number, value))
    return isinstance(value, bool | int | float | complex | Tensor)


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
    elif isinstance(member, staticmethod | classmethod | types.MethodType):
        member = member.__func__
    elif isinstance(member, functools.partial):
        member = member.func
    function = inspect.unwrap(member) if isinstance(member, types.FunctionType) else None
    return function if isinstance(function, types.FunctionType) else None


def _is_torchs(function: types.FunctionType) -> bool:
    return (function.__module__ or "").startswith("torch.")  # what torch.fx makes is in no module


def _steps(code: types.CodeType) -> Iterator[dis.Instruction]:
    for inner in codes_in(code):
        yield from dis.get_instructions(inner)
