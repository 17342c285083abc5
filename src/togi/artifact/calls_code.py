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
_METHODS = (types.FunctionType, property, functools.cached_property, staticmethod, classmethod)


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


def named_by_calls(classes: frozenset[type]) -> frozenset[str]:
    """Names that calls of modules of these classes use: of attributes, of globals, and in texts (``getattr(self,
    "scale")``). The functions that they name are followed, but for torch's; objects are asked for methods as modules
    are."""
    return _known(classes).now()


@functools.lru_cache(maxsize=32)  # copies of a block have the same
def _known(classes: frozenset[type]) -> _NamedByCalls:
    return _NamedByCalls(classes)


class _NamedByCalls:
    """The names, and all that they follow from. A notebook (``%autoreload``, a cell that is run again) puts other code
    into a function, other functions into a class, and another one under a global's name."""

    def __init__(self, classes: frozenset[type]) -> None:
        self._classes = classes
        self._look()

    def now(self) -> frozenset[str]:
        if not self._is_as_it_was():
            self._look()
        return self._names

    def _look(self) -> None:
        self.codes: list[tuple[types.FunctionType, types.CodeType]] = []
        self.globals: list[tuple[dict[str, Any], str, types.FunctionType | None]] = []
        self.methods = {base: _methods_of(base) for cls in self._classes for base in cls.__mro__}
        self._names = _named(self._classes, self)

    def _is_as_it_was(self) -> bool:
        return (
            all(function.__code__ is code for function, code in self.codes)
            and all(_global(namespace, name) is one for namespace, name, one in self.globals)
            and all(_methods_of(base) == methods for base, methods in self.methods.items())
        )


class UsersCode:
    """The functions of the user's own that calls of modules of these classes run, as they are when this is made."""

    def __init__(self, classes: frozenset[type]) -> None:
        known = _known(classes)
        known.now()
        own = {f: code for f, code in known.codes if origin(code.co_filename) is Origin.USER}
        self._codes = list(own.items())
        methods = ((vars(base), name, one) for base, held in known.methods.items() for name, one in held.items())
        named = {(id(namespace), name): (namespace, name, one) for namespace, name, one in known.globals}
        self._places = [
            (held_in, name, one) for held_in, name, one in (*methods, *named.values()) if _function_of(one) in own
        ]

    def edited(self) -> str:
        """The name of a function that is another now, or has other code; empty where there is none."""
        for position, (function, code) in enumerate(self._codes):
            if function.__code__ is not code:
                if not _is_alike(function.__code__, code):
                    return function.__qualname__
                self._codes[position] = function, function.__code__  # its file was read again, and it was not changed
        return next((name for held_in, name, one in self._places if held_in.get(name) is not one), "")


def _is_alike(one: types.CodeType, other: types.CodeType) -> bool:
    """Wherever they stand."""
    plain = [[c for c in code.co_consts if not isinstance(c, types.CodeType)] for code in (one, other)]
    inner = [[c for c in code.co_consts if isinstance(c, types.CodeType)] for code in (one, other)]
    if (one.co_code, one.co_names, repr(plain[0])) != (other.co_code, other.co_names, repr(plain[1])):
        return False
    return len(inner[0]) == len(inner[1]) and all(map(_is_alike, *inner))


def _methods_of(cls: type) -> dict[str, Any]:
    return {name: member for name, member in vars(cls).items() if isinstance(member, _METHODS)}


def _global(namespace: dict[str, Any], name: str) -> types.FunctionType | None:
    found = namespace.get(name)
    return found if isinstance(found, types.FunctionType) else None


def _named(classes: frozenset[type], followed: _NamedByCalls) -> frozenset[str]:
    """``followed``: takes what was looked at."""
    names: set[str] = set()
    seen: set[types.CodeType] = set()
    open_ = [function for cls in classes for name in _ROOTS for function in _functions(cls, name)]
    while open_:
        function = open_.pop()
        followed.codes.append((function, function.__code__))
        for code in codes_in(function.__code__):
            if code in seen:
                continue
            seen.add(code)
            new = {*code.co_names, *(constant for constant in code.co_consts if isinstance(constant, str))} - names
            names |= new
            open_ += [method for name in new for cls in classes for method in _functions(cls, name)]
            named = [(function.__globals__, name, _global(function.__globals__, name)) for name in code.co_names]
            followed.globals += named
            open_ += [one for *_, one in named if one is not None and not _is_torchs(one)]
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
