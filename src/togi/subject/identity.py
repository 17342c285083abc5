"""Hashes by which togi knows a module, or the values of a call, again in another process.

Weights and classes alone do not say what a module computes. A script that was edited, or that gets another argument,
may hold the same weights and answer otherwise. So togi hashes the code of the classes, the functions and constants of
the user's own that this code names, and every plain attribute of every part.
"""

from __future__ import annotations

import argparse
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.user_code import Origin, names_in, origin
from togi.subject.classes import slots_of
from togi.subject.plain_tensors import bits
from togi.torch_internals.modules import forward_hooks, forward_pre_hooks, own_buffers, own_modules, own_parameters

_TORCHS_OWN = frozenset(vars(nn.Module())) - {"training"}
_NOT_COMPUTED_WITH = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __qualname__ __annotations__ __firstlineno__ __static_attributes__ "
    "__slotnames__".split()
)
"""Attributes of classes that say where and how a class was written, and what copying an object notes in its class."""
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice)
_TORCHS_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_BUILT_IN = (types.BuiltinFunctionType, types.MethodWrapperType)
"""Written in C, some bound to an object: ``TABLE.get``."""
_WITHOUT_IDENTITY = (tuple, frozenset, types.CodeType, types.MethodType, *_BUILT_IN)
"""Equal ones may be one object or several: as the compiler pleases, and a method is bound anew whenever it is asked
for."""
_NAMESPACES = (argparse.Namespace, types.SimpleNamespace)
"""Of the standard library, the objects that are nothing but their attributes."""
_FORMS = ("dtype", "shape", "mode", "size", "typecode")
"""Attributes that say how the bytes of an array or a picture are meant."""
_WRAPPED = "__wrapped__"
"""Where the standard library keeps the function that was decorated: ``functools.lru_cache``."""
_MOST_VALUES = 200_000
_DEEPEST = 50


def value_hash(*values: Any) -> str:
    """Of nested values: their structure, and what tensors, arrays, texts and numbers in them hold."""
    digest = _ValueDigest()
    for value in values:
        digest.add(value, _DEEPEST)
    return digest.hexdigest()


def computation_hash(module: nn.Module) -> str:
    """Of all by which a module decides what it answers: its code, its settings, its hooks, and the bits of its
    weights."""
    hooks = [(forward_hooks(part), forward_pre_hooks(part)) for part in module.modules()]
    kept = [list(hook.values()) for pair in hooks for hook in pair]
    weights = [*module.named_parameters(), *module.named_buffers()]
    return value_hash(code_and_settings_hash(module), kept, weights)


def code_and_settings_hash(module: nn.Module) -> str:
    """Of both, where it does not matter which of them differs."""
    return value_hash(code_hash(module), settings_hash(module))


def settings_hash(module: nn.Module) -> str:
    """Of what all parts hold in plain attributes: numbers, texts, tensors, configurations, functions. A part that is
    held there is known by its place."""
    digest = _ValueDigest(module.modules())
    for name, part in module.named_modules():
        digest.put(name)
        if isinstance(part, torch.fx.GraphModule):
            digest.put(part.code)
        if not isinstance(part, torch.jit.ScriptModule):
            digest.add(_attributes(part), _DEEPEST)
    return digest.hexdigest()


def code_hash(module: nn.Module) -> str:
    """Of the code of the classes of all parts, in the order of these: classes that a function makes have one name.
    Torch's own is known by its version."""
    digest = _ValueDigest()
    digest.put(f"{sys.version_info[:2]} {torch.__version__}")
    for part in module.modules():
        digest.add(type(part), _DEEPEST)
    return digest.hexdigest()


def setting_hashes(values: Iterable[Any], named: Collection[str], parts: Iterable[nn.Module]) -> Iterator[str]:
    """Of each value by itself, which a module holds in an attribute: equal wherever the same is held, in another
    process, with other versions of Python and of libraries, on another device.

    So functions and classes are known by their names, and of an object what is in ``named`` counts. ``parts``: modules
    that are known by themselves.
    """
    beginning = _SettingDigest(named, parts)
    for value in values:
        digest = beginning._after_the_same()
        digest.add(value, _DEEPEST)
        yield digest.hexdigest()


def is_own_object(value: Any) -> bool:
    """Whether its class is the user's own, or of a package that uses torch: it may hold settings."""
    if isinstance(value, _NAMESPACES):
        return True
    known = isinstance(value, Tensor | nn.Module | type | types.FunctionType | Mapping | list | tuple | enum.Enum)
    plain = hasattr(value, "__dict__") and not hasattr(value, "tobytes")
    return not known and plain and _origin_of(type(value)) is not Origin.LIBRARY


class _ValueDigest:
    """Hashes values and code by what they hold, never by where they lie in memory."""

    def __init__(self, known: Iterable[Any] = ()) -> None:
        """``known``: values of which nothing but their places counts."""
        self._digest = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}
        """By identity: how many were met before it. The values are kept, so that no other takes their place."""
        self._left = _MOST_VALUES
        for value in known:
            self._is_new(value)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def put(self, text: str) -> None:
        self._digest.update(text.encode("utf-8", "surrogatepass"))
        self._digest.update(b";")

    def add(self, value: Any, depth: int) -> None:
        self._left -= 1
        self.put(type(value).__qualname__)
        if isinstance(value, enum.Enum):
            self.put(value.name)
        elif isinstance(value, (*_CONSTANTS, *_TORCHS_CONSTANTS)):
            self.put(repr(value))
        elif self._left > 0 and depth > 0:
            self._add_inside(value, depth - 1)

    def _add_all(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            self.add(value, depth)

    def _add_inside(self, value: Any, depth: int) -> None:
        if not isinstance(value, _WITHOUT_IDENTITY) and not self._is_new(value):
            self.put(f"again {self._seen[id(value)][0]}")
        elif isinstance(value, Tensor):
            self._add_tensor(value, depth)
        elif isinstance(value, type):
            self._add_class(value, depth)
        elif isinstance(value, types.FunctionType):
            self._add_function(value, depth)
        elif isinstance(value, types.CodeType):
            self._add_code(value, depth)
        elif isinstance(value, set | frozenset):
            self.put(str(sorted(self._apart(item, depth) for item in value)))
        else:
            self._add_all(_inside(value), depth)

    def _is_new(self, value: Any) -> bool:
        """Whether it was not met before; from now on it was."""
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = len(self._seen), value
        return True

    def _another(self) -> _ValueDigest:
        """One of the same kind, which holds nothing yet."""
        return _ValueDigest()

    def _after_the_same(self) -> _ValueDigest:
        """Another one, which met the same values."""
        digest = self._another()
        digest._seen = dict(self._seen)
        return digest

    def _apart(self, item: Any, depth: int) -> str:
        """What an item of a set says by itself, since in which order it comes is chance."""
        if isinstance(item, _CONSTANTS):
            return repr(item)
        digest = self._after_the_same()
        digest._left = self._left
        digest.add(item, depth)
        self._left = digest._left
        return digest.hexdigest()

    def _add_tensor(self, tensor: Tensor, depth: int) -> None:
        if tensor.is_nested:
            self._add_all(tensor.unbind(), depth)
            return
        self.put(f"{tensor.dtype} {tuple(tensor.shape)}")
        if hasattr(tensor, "__tensor_flatten__"):  # a class of tensors that are made of others
            names, context = tensor.__tensor_flatten__()
            self._add_all((context, *(getattr(tensor, name) for name in names)), depth)
        elif not tensor.is_meta and tensor.numel():
            own = type(tensor) in (Tensor, nn.Parameter)
            self._digest.update(bits(tensor if own else tensor.as_subclass(Tensor)))

    def _add_class(self, cls: type, depth: int) -> None:
        """Its functions and constants, if it is the user's or of a module of an installed package."""
        self.put(f"{cls.__module__}.{cls.__qualname__}")
        if not issubclass(cls, nn.Module) and _origin_of(cls) is not Origin.USER:
            return
        for base in cls.__mro__[1:]:
            self.add(base, depth)
        if _origin_of(cls) is not Origin.LIBRARY:
            for name, member in sorted(vars(cls).items()):
                if name not in _NOT_COMPUTED_WITH:
                    self.put(name)
                    self.add(member, depth)

    def _add_function(self, function: types.FunctionType, depth: int) -> None:
        self._add_code(function.__code__, depth)
        self._add_all((function.__defaults__, function.__kwdefaults__), depth)
        self._add_cells(function, depth)
        if origin(function.__code__.co_filename) is Origin.USER:
            self._add_named(names_in(function.__code__), function.__globals__, depth)

    def _add_cells(self, function: types.FunctionType, depth: int) -> None:
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents, depth)
            except ValueError:  # not filled yet
                self.put("empty")

    def _add_named(self, names: list[str], namespace: Mapping[str, Any], depth: int) -> None:
        """The globals that a function of the user's names. Of modules of the user's own, and of objects, only what it
        names of them: the rest may be large, and may change while the script runs."""
        for name in names:
            value = namespace.get(name)
            self.put(name)
            if isinstance(value, types.ModuleType):
                if _is_users_file(value):
                    self._add_all((vars(value)[inner] for inner in names if inner in vars(value)), depth)
            elif isinstance(value, _DECIDES):
                self.add(value, depth)
            elif isinstance(held := getattr(value, "__dict__", None), dict):
                self.add(type(value), depth)
                kept = (held[key] for key in (*names, _WRAPPED) if key in held)
                self._add_all((each for each in kept if isinstance(each, _DECIDES)), depth)

    def _add_code(self, code: types.CodeType, depth: int) -> None:
        self._digest.update(code.co_code)
        self.put(" ".join((*code.co_names, *code.co_varnames)))
        self._add_all(code.co_consts, depth)


class _SettingDigest(_ValueDigest):
    """See ``setting_hashes``."""

    def __init__(self, named: Collection[str], parts: Iterable[nn.Module]) -> None:
        super().__init__(parts)
        self._named = named

    def _another(self) -> _ValueDigest:
        return _SettingDigest(self._named, ())

    def add(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.device) or (isinstance(value, str) and _is_device(value)):
            self.put("device")
        else:
            super().add(value, depth)

    def _add_inside(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.Generator):  # drawing changes it
            return
        if not (isinstance(value, nn.Module | Mapping) or is_own_object(value)) or not self._is_new(value):
            super()._add_inside(value, depth)
            return
        if isinstance(value, Mapping):
            # who takes a number takes it by a key made anywhere; texts say where something is, too
            items = [(k, held) for k, held in value.items() if k in self._named or not isinstance(held, str | None)]
            self._add_all((part for item in items for part in item), depth)
            return
        if isinstance(value, nn.Module):  # one that is not a part
            self._add_all((own_parameters(value), own_buffers(value), own_modules(value)), depth)
        self.add(type(value), depth)
        for name, held in sorted(vars(value).items()):
            # a configuration may say in which dtype the weights were loaded, which they show themselves
            if name in self._named and name not in _TORCHS_OWN and held is not None and not _is_dtype(held):
                self.put(name)
                self.add(held, depth)

    def _add_class(self, cls: type, depth: int) -> None:
        self.put(cls.__qualname__)

    def _add_function(self, function: types.FunctionType, depth: int) -> None:
        self.put(function.__qualname__)
        self._add_all((function.__defaults__, function.__kwdefaults__), depth)
        self._add_cells(function, depth)
        if function.__name__ == (lambda: None).__name__:  # of these there may be several in one place
            self.put(" ".join(sorted(names_in(function.__code__))))
            self.put(repr([held for held in function.__code__.co_consts if type(held) in (int, float, complex)]))


def _is_dtype(value: Any) -> bool:
    return isinstance(vars(torch).get(value) if isinstance(value, str) else value, torch.dtype)


def _is_device(text: str) -> bool:
    try:
        return bool(torch.device(text))
    except RuntimeError:
        return False


_DECIDES = (
    *(*_CONSTANTS, *_TORCHS_CONSTANTS, *_BUILT_IN, types.FunctionType, types.MethodType, functools.partial, type),
    *(enum.Enum, Tensor, nn.Module, tuple, frozenset, list, dict, set),
)
"""Kinds of global variables that say how something is computed."""


def _inside(value: Any) -> Iterator[Any]:
    """What a value is made of."""
    if isinstance(value, Mapping):
        yield from (part for item in value.items() for part in item)
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, functools.partial | functools.partialmethod):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, _BUILT_IN):
        yield from (value.__qualname__, value.__self__)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, functools.cached_property):
        yield value.func
    elif isinstance(value, nn.Module):  # one that is not a part: those have their own turn
        yield from (type(value), own_parameters(value), own_buffers(value), own_modules(value), _attributes(value))
    elif isinstance(value, types.ModuleType):
        return
    elif isinstance(value, torch.Generator):
        yield value.get_state()
    elif hasattr(value, "dtype") and getattr(value.dtype, "hasobject", False):  # its bytes are addresses
        yield value.tolist()
    elif hasattr(value, "tobytes"):  # of NumPy, the standard library, Pillow
        yield from (str(getattr(value, name, "")) for name in _FORMS)
        yield bytes(value.tobytes())
    else:
        yield from (str(getattr(value, "__qualname__", "")), type(value))
        held = getattr(value, "__dict__", None)
        if _origin_of(type(value)) is not Origin.LIBRARY or isinstance(value, _NAMESPACES):
            yield held
            yield from (getattr(value, name, None) for name in slots_of(type(value)))
        elif isinstance(held, dict):
            yield held.get(_WRAPPED)


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Without those that every module has."""
    return {name: value for name, value in vars(module).items() if name not in _TORCHS_OWN}


def _is_users_file(module: types.ModuleType) -> bool:
    path = getattr(module, "__file__", None)
    return path is not None and origin(path) is Origin.USER


def _origin_of(cls: type) -> Origin:
    path = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if path is not None:
        return origin(path)
    return Origin.LIBRARY if cls.__module__ in sys.builtin_module_names else Origin.USER
