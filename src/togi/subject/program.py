"""A program as a module: anything that can be called and runs modules (``model.generate``, a pipeline, a function)."""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from togi.core.errors import SubjectError
from togi.core.quantities import a_type
from togi.core.user_code import Origin, names_in, origin
from togi.subject.inputs import Inputs
from togi.torch_internals.modules import in_training

_DEEPEST = 6
_MOST = 20_000
"""Levels and values looked through for modules: a pipeline holds its models near its surface."""


class ProgramModule(nn.Module):
    """Called like the program; the modules that the program reaches are its submodules, by name."""

    def __init__(self, call: Callable[..., Any], *, in_parts: bool = False) -> None:
        """``in_parts``: it is never captured whole, since what is tuned goes into the live modules that it runs.

        Raises SubjectError when ``call`` cannot be called, or no module can be found from it.
        """
        super().__init__()
        if not callable(call):
            raise SubjectError(
                f"a program is what can be called (model.generate, a pipeline, a function), and this is {a_type(call)}"
                ": give one of these"
            )
        modules = reachable_modules(call)
        if not modules:
            raise SubjectError(
                f"no torch module can be found from {_called(call)}: togi looks at what it is bound to, its "
                "attributes, its closure and the globals that it names. Give a function that names the modules it runs"
            )
        for name, module in modules.items():
            self.add_module(name, module)
        self.forward = call
        self.in_parts = in_parts
        self.training = any(in_training(module) for module in modules.values())

    def look_again(self) -> None:
        """Take in the modules that the program made in a call and keeps (ultralytics' fused copy of its network)."""
        known = {id(part) for part in self.modules()}
        for name, module in reachable_modules(self.forward).items():
            if id(module) not in known:
                self.add_module(_free(name, self._modules), module)

    @property
    def name(self) -> str:
        """``LlamaForCausalLM.generate``."""
        return _called(self.forward)

    def __deepcopy__(self, memo: dict[int, Any]) -> ProgramModule:
        """Raises TypeError where the copy would still run the modules of the original."""
        copied = ProgramModule(_copied(self.forward, memo), in_parts=self.in_parts)
        if {id(part) for part in copied.children()} & {id(part) for part in self.children()}:
            raise TypeError(f"{self.name} reaches its modules in a way that cannot be copied")
        return copied


class FunctionModule(nn.Module):
    """A function that runs no module, as one without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function

    @property
    def original_name(self) -> str:
        """As its author wrote it; of TorchScript modules this has the same name (``inventory.class_name``)."""
        return _called(self.forward)


def as_module(value: Any) -> Any:
    """A module as it is, anything else that can be called and reaches modules as a program; all else as it is.

    Raises SubjectError for what can be called and reaches no module.
    """
    if isinstance(value, nn.Module) and is_called_otherwise(value):
        return ProgramModule(value.__call__)
    if isinstance(value, nn.Module | type | ExportedProgram) or not callable(value):
        return value
    return ProgramModule(value)


def is_called_otherwise(module: nn.Module) -> bool:
    """Whether a call of it never comes to a ``forward``: its class has none, and a ``__call__`` of its own
    (ultralytics' models, which predict). Such a module is a program, as the method that is called."""
    cls = type(module)
    has_forward = "forward" in vars(module) or _member(cls, "forward") is not _member(nn.Module, "forward")
    return not has_forward and _member(cls, "__call__") is not _member(nn.Module, "__call__")


def _member(cls: type, name: str) -> Any:
    """As it stands in the class: asking for it may run code."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def find_module(program: nn.Module, path: str, sample: Inputs) -> nn.Module:
    """A module of a program by its name. One that the program makes in its first call is there after a call with
    ``sample``. Raises AttributeError where there is none."""
    if isinstance(program, ProgramModule) and path not in dict(program.named_modules()):
        call_inputs = sample.clone()
        with torch.no_grad():
            program(*call_inputs.args, **call_inputs.kwargs)
        program.look_again()
    return program.get_submodule(path)


def reachable_modules(call: Any) -> dict[str, nn.Module]:
    """The outermost modules that a callable can reach, by a name made of the way to each. Modules are found in what a
    module holds besides its own parts, too."""
    modules: dict[str, nn.Module] = {}
    seen: set[int] = set()
    queue = deque([("", call, 0)])
    while queue and len(seen) < _MOST:
        name, value, depth = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            if not any(value is part for module in modules.values() for part in module.modules()):
                modules[_free(name or "model", modules)] = value
                queue.extend((key, child, depth + 1) for key, child in vars(value).items() if not key.startswith("_"))
        elif depth < _DEEPEST:
            queue.extend((inner or name, child, depth + 1) for inner, child in parts_of(value))
    return modules


def _free(name: str, taken: Mapping[str, object]) -> str:
    name = name.replace(".", "_")
    names = (f"{name}_{number}" if number else name for number in range(len(taken) + 1))
    return next(free for free in names if free not in taken)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy, of functions too where they reach modules through their globals or closure (``deepcopy`` returns
    functions as they are)."""
    if not isinstance(value, types.FunctionType):
        return copy.deepcopy(value, memo)
    if id(value) in memo:
        return memo[id(value)]
    cells = tuple(types.CellType() for _ in value.__closure__ or ())
    global_names = dict(value.__globals__)
    function = types.FunctionType(value.__code__, global_names, value.__name__, value.__defaults__, cells)
    function.__kwdefaults__ = value.__kwdefaults__
    functools.update_wrapper(function, value)
    memo[id(value)] = function
    for name, child in _parts_of_function(value):
        if name in global_names and reachable_modules(child):
            global_names[name] = _copied(child, memo)
    for old, new in zip(value.__closure__ or (), cells, strict=True):
        with contextlib.suppress(ValueError):  # not filled yet
            content = old.cell_contents
            new.cell_contents = _copied(content, memo) if reachable_modules(content) else content
    return function


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The values that a value leads to, with the last name on the way."""
    if isinstance(value, types.MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from (("", argument) for argument in value.args)
        yield from value.keywords.items()
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, Mapping):
        yield from ((key if isinstance(key, str) else "", child) for key, child in value.items())
    elif isinstance(value, list | tuple | set):
        yield from (("", child) for child in value)
    elif not isinstance(value, type | types.ModuleType) and hasattr(value, "__dict__"):
        yield from vars(value).items()


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from (
        ("", default) for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    )
    if origin(function.__code__.co_filename) is Origin.USER:
        global_names = function.__globals__
        yield from ((name, global_names[name]) for name in names_in(function.__code__) if name in global_names)


def _called(call: Any) -> str:
    if isinstance(call, types.MethodType):  # torch's own functions are bound, too: to an object that nobody knows
        return f"{type(call.__self__).__name__}.{call.__name__}"
    if isinstance(call, functools.partial):
        return _called(call.func)
    return str(getattr(call, "__name__", type(call).__name__))
