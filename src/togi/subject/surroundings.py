"""The state that a user's own training step keeps outside of module and optimizer: a gradient scaler, a scheduler, an
averaged model, a generator, a counter.

It is found from the function: in its closure and defaults, in the globals that it names, in the object that it is a
method of, and in attributes of the optimizer. Functions and objects of the user's own code are followed, those of
libraries are not. Objects with ``state_dict`` and ``load_state_dict`` are read and written by these, generators by
their states, numbers, texts, small tensors and small arrays by their values, and so are containers of these. Iterators
and files cannot be put back: a step that reads on in one does not repeat, which whoever compares two runs finds out.
"""

from __future__ import annotations

import copy
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Number
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from togi.core.user_code import is_users, names_in
from togi.subject.prepare import named_tensors
from togi.subject.remembered import TORCHS_OWN
from togi.torch_internals.modules import convert_tensors

_DEEPEST = 4
"""Levels of functions and objects that are followed."""
_LARGEST = 4096
"""Numbers of a tensor, entries of a container: what is larger is data, not the state of a step."""
_PLAIN = (Number, str, bytes, type(None))
_OF_EVERY_OPTIMIZER = frozenset({"defaults", "state", "param_groups"})


class _Reference(NamedTuple):
    """A value with the place where it was found."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]


class Surroundings:
    """The state round one training step, by name (``scaler``, ``trainer.steps``)."""

    def __init__(
        self,
        train_step: Callable[..., Any] | None,
        optimizer: torch.optim.Optimizer | None,
        loss: Callable[..., Any] | None = None,
    ) -> None:
        """``loss``: the user's function where there is no ``train_step``. Modules with values of their own that it
        names (a teacher) it only reads, and optimizers too."""
        self._kept: dict[str, _Reference] = {}
        self._objects: dict[str, Any] = {}
        """Those that have a state of their own."""
        self._visited: set[int] = set()
        self._is_loss = False
        if optimizer is not None:
            for reference in _attributes(optimizer):
                if reference.name not in _OF_EVERY_OPTIMIZER and not reference.name.startswith("_"):
                    self._add(reference._replace(name=f"optimizer.{reference.name}"), 0)
        if train_step is not None:
            self._follow("", train_step, 0)
        if loss is not None:
            self._is_loss = True
            self._add(_fixed("step", loss), 0)

    def read(self) -> dict[str, Any]:
        """Copies of all values."""
        return {name: kept.read() for name, kept in self._kept.items()}

    def write(self, values: Mapping[str, Any]) -> None:
        """Put back what ``read`` returned; what was not there then stays."""
        for name, value in values.items():
            if name in self._kept:
                self._kept[name].write(value)

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all numbers and tensors among the values, by name: a scale, a count of steps, averaged weights."""
        return dict(_tensors_in(self.read(), ""))

    @property
    def optimizers(self) -> list[str]:
        """Names of optimizers that were made outside, of parameters that are not a copy's."""
        return [name for name, value in self._objects.items() if isinstance(value, torch.optim.Optimizer)]

    @property
    def schedules(self) -> list[str]:
        """Names of objects that hold such an optimizer, as a schedule does."""
        held = {name: getattr(value, "optimizer", None) for name, value in self._objects.items()}
        return [name for name, optimizer in held.items() if isinstance(optimizer, torch.optim.Optimizer)]

    @contextmanager
    def widened(self) -> Iterator[None]:
        """Modules among them, such as an averaged one, are in float64 meanwhile."""
        modules = [value for value in self._objects.values() if isinstance(value, nn.Module)]
        dtypes = [{name: tensor.dtype for name, tensor in named_tensors(module)} for module in modules]
        for module in modules:
            convert_tensors(module, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
        try:
            yield
        finally:
            for module, before in zip(modules, dtypes, strict=True):
                _narrow(module, before)

    def _follow(self, name: str, value: Any, depth: int) -> None:
        """Add what a function, a method or an object of the user's refers to."""
        if depth > _DEEPEST or id(value) in self._visited:
            return
        self._visited.add(id(value))
        for reference in _references(value):
            self._add(reference._replace(name=".".join(filter(None, (name, reference.name)))), depth)

    def _add(self, reference: _Reference, depth: int) -> None:
        value = reference.read()
        if self._is_loss and isinstance(value, nn.Module | torch.optim.Optimizer):
            self._add_criterion(reference.name, value, depth)
            return
        kept = _kept(reference, value)
        if kept is None:
            self._follow(reference.name, value, depth + 1)
        elif isinstance(value, _PLAIN) or id(value) not in self._visited:
            self._kept[reference.name] = kept
            self._visited.add(id(value))
            if not isinstance(value, _PLAIN):
                self._objects[reference.name] = value

    def _add_criterion(self, name: str, value: Any, depth: int) -> None:
        """What a module without values counts in its attributes."""
        if not isinstance(value, nn.Module) or next(named_tensors(value), None) is not None:
            return
        for reference in _attributes(value):
            if reference.name not in TORCHS_OWN:
                self._add(reference._replace(name=f"{name}.{reference.name}"), depth + 1)


def _kept(reference: _Reference, value: Any) -> _Reference | None:
    """How a piece of state is copied and put back; None for a value that is none itself."""
    name = reference.name
    if isinstance(value, type | types.ModuleType):
        return None
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        load = value.load_state_dict
        return _Reference(name, lambda: _copied(value.state_dict()), lambda before: load(_copied(before)))
    if isinstance(value, torch.Generator):
        return _Reference(name, value.get_state, value.set_state)
    if isinstance(value, random.Random):
        return _Reference(name, value.getstate, value.setstate)
    if not isinstance(value, tuple) and _is_plain(value):
        return _Reference(name, lambda: _copied(reference.read()), functools.partial(_put_back, reference))
    return _of_numpy(reference, value)


def _of_numpy(reference: _Reference, value: Any) -> _Reference | None:
    """A generator of NumPy's, or a small array."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    name = reference.name
    if isinstance(value, numpy.random.Generator):
        generator = value.bit_generator
        return _Reference(name, lambda: copy.deepcopy(generator.state), functools.partial(setattr, generator, "state"))
    if isinstance(value, numpy.random.RandomState):
        return _Reference(name, functools.partial(value.get_state, legacy=False), value.set_state)
    if isinstance(value, numpy.ndarray) and value.size <= _LARGEST and value.dtype.kind in "biufc":
        return _Reference(name, lambda: reference.read().copy(), functools.partial(_put_array_back, reference))
    return None


def _put_back(reference: _Reference, before: Any) -> None:
    """A number, a small tensor or a container of these: a tensor or container that is there is written in place, since
    others may hold it too."""
    now = reference.read()
    if isinstance(now, _PLAIN) and isinstance(before, _PLAIN) and now == before:
        return
    if (after := _put_into(now, before)) is not now:
        reference.write(after)


def _put_array_back(reference: _Reference, before: Any) -> None:
    """The array that is there is written in place, as a tensor is."""
    now = reference.read()
    if (getattr(now, "shape", None), getattr(now, "dtype", None)) == (before.shape, before.dtype):
        now[...] = before
    else:
        reference.write(before.copy())


def _refill(value: Any, before: Any) -> None:
    if isinstance(value, dict):
        values: Any = {key: _put_into(value.get(key), part) for key, part in before.items()}
    elif isinstance(value, set):
        values = before
    else:
        there = [*value, *[None] * len(before)]
        values = [_put_into(now, part) for now, part in zip(there, before, strict=False)]
    value.clear()
    (value.extend if isinstance(value, list | deque) else value.update)(values)


def _put_into(now: Any, before: Any) -> Any:
    """The tensor or container that is there, with the earlier values, where it is of that form; else a copy of what
    was there."""
    for kind, copied in ((dict, dict), (set, set), (list, list), (deque, list)):
        if isinstance(now, kind) and isinstance(before, copied):
            _refill(now, before)
            return now
    alike = isinstance(now, Tensor) and isinstance(before, Tensor)
    if not alike or (now.shape, now.dtype) != (before.shape, before.dtype):
        return _copied(before)
    with torch.no_grad():
        now.copy_(before)
    return now


def _is_plain(value: Any) -> bool:
    """Whether it is a number, a text or a small tensor, or a container of few of these alone."""
    if isinstance(value, list | tuple | deque):
        return len(value) <= _LARGEST and all(map(_is_plain, value))
    if isinstance(value, set):
        return len(value) <= _LARGEST and all(_is_plain(part) and not isinstance(part, Tensor) for part in value)
    if isinstance(value, dict):
        return len(value) <= _LARGEST and all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN) or _is_small(value)


def _is_small(value: Any) -> bool:
    """A tensor that may be the state of a step, and no data."""
    return isinstance(value, Tensor) and value.numel() <= _LARGEST


def _references(value: Any) -> Iterator[_Reference]:
    """All that a function, a method, a partial, a container or an object of the user's refers to."""
    if isinstance(value, functools.partial):
        yield from (_fixed(str(i), part) for i, part in enumerate((value.func, *value.args)))
        yield from (_fixed(name, part) for name, part in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield from (_fixed("", value.__self__), _fixed("", value.__func__))
    elif isinstance(value, types.FunctionType):
        if is_users(value.__code__.co_filename):
            yield from _of_function(value)
        elif isinstance(inner := getattr(value, "__wrapped__", None), types.FunctionType):
            yield _fixed("", inner)  # decorated with torch.autocast, torch.compile
    elif isinstance(value, list | tuple) and len(value) <= _LARGEST:
        yield from (_item(value, i, str(i)) for i in range(len(value)))
    elif isinstance(value, dict) and len(value) <= _LARGEST:
        yield from (_item(value, key, str(key)) for key in value)
    elif not isinstance(value, nn.Module | type | types.ModuleType) and _is_users_object(value):
        yield from _attributes(value)
        if callable(value):
            yield _fixed("", type(value).__call__)


def _of_function(function: types.FunctionType) -> Iterator[_Reference]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # an empty one is not assigned yet
            yield _Reference(
                name,
                functools.partial(getattr, cell, "cell_contents"),
                functools.partial(setattr, cell, "cell_contents"),
            )
    variables = function.__globals__
    for name in sorted(variables.keys() & names_in(function.__code__)):
        yield _item(variables, name, name)
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    yield from (_fixed(f"default {i}", part) for i, part in enumerate(defaults))


def _attributes(value: Any) -> Iterator[_Reference]:
    for name in list(getattr(value, "__dict__", {})):
        yield _Reference(name, functools.partial(getattr, value, name), functools.partial(setattr, value, name))


def _item(container: Any, key: Any, name: str) -> _Reference:
    if isinstance(container, tuple):
        return _fixed(name, container[key])
    return _Reference(
        name, functools.partial(container.__getitem__, key), functools.partial(container.__setitem__, key)
    )


def _fixed(name: str, value: Any) -> _Reference:
    """A value in a place that nobody assigns to: it cannot have been replaced."""
    return _Reference(name, lambda: value, lambda _: None)


def _is_users_object(value: Any) -> bool:
    """Whether its class is the user's own, or a namespace, which holds what the user wants."""
    if isinstance(value, types.SimpleNamespace):
        return True
    module = sys.modules.get(type(value).__module__)
    path = getattr(module, "__file__", None)
    return type(value).__module__ == "__main__" or (path is not None and is_users(path))


def _copied(value: Any) -> Any:
    """A state without the graphs and the memory of its tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list | deque):
        return [_copied(part) for part in value]
    if isinstance(value, tuple):
        kind: Any = type(value)
        parts = [_copied(part) for part in value]
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    return copy.deepcopy(value)


def _narrow(module: nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Give each parameter and buffer the dtype that its name had."""
    now = {id(tensor): dtypes.get(name, tensor.dtype) for name, tensor in named_tensors(module)}
    convert_tensors(module, lambda tensor: tensor.to(now.get(id(tensor), tensor.dtype)))


def _tensors_in(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors_in(part, f"{name}.{key}".lstrip("."))
    elif isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, list | tuple) and any(isinstance(part, Tensor) for part in value):
        for i, part in enumerate(value):
            yield from _tensors_in(part, f"{name}.{i}".lstrip("."))
    elif isinstance(value, int | float):
        yield name, torch.tensor(float(value), dtype=torch.float64)
    elif getattr(getattr(value, "dtype", None), "kind", None) in tuple("biuf"):  # NumPy's
        yield name, torch.tensor(value.astype("float64").tolist(), dtype=torch.float64)
