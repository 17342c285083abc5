"""The identity of a module besides its classes and weights: the settings by which its calls compute.

A script's module is known again in the next run of that script by all that it holds (``subject/identity``). Here one is
known again in another program: it was loaded from elsewhere, in another process, on another device. So what counts is
what its calls name.
"""

from __future__ import annotations

import sys
import types
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from togi.artifact.attributes import TORCHS_OWN
from togi.artifact.calls_code import FORWARD, assigned_by_calls, named_by_calls, own_code
from togi.subject.identity import is_own_object, setting_hashes, value_hash
from togi.subject.stand_in import FunctionStandIn
from togi.torch_internals.modules import forward_hooks, forward_pre_hooks

_VARIES = ""
"""In place of a hash: calls change it."""
_MOST_OBJECTS = 1000
_GIVEN = (type(None), bool, int, float, complex, str)
_DIGITS = 16
"""Of a hash: enough against chance."""
_OF_CODE = "code under Python "
_CODE = f"{_OF_CODE}{sys.version_info[0]}.{sys.version_info[1]}"
"""The user's own code that calls run. Another version of Python compiles it otherwise, so there it is not compared."""


def settings_of(module: nn.Module, state: Collection[str] = (), varying: Collection[str] = ()) -> dict[str, str]:
    """Hashes of what the module's parts hold in plain attributes, by the attribute's name: of those that calls name,
    and neither assign nor keep as their ``state``. Hooks and a replaced ``forward`` are among them, and the user's own
    code that calls run. ``varying``: names of what calls were seen to change, which is of no account."""
    held: dict[str, list[str]] = defaultdict(list)
    for path, name, hashed in _settings(module, state):
        held[name] += (path, hashed)
    hashes = {name: value_hash(hashed)[:_DIGITS] for name, hashed in held.items()} | dict.fromkeys(varying, _VARIES)
    return dict(sorted(hashes.items()))


def varying_settings(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Names of what calls changed. ``before``, ``after``: the settings then."""
    return tuple(sorted(name for name in {*before, *after} if before.get(name) != after.get(name)))


def changed_setting(tuned: Mapping[str, str] | None, module: nn.Module, state: Collection[str] = ()) -> str:
    """Which setting of the module, in words, is not that of the one that was tuned; empty where all are. ``tuned``:
    None where it is not known (an earlier version of togi wrote the artifact)."""
    if tuned is None:
        return ""
    here = settings_of(module, state)
    for name in sorted({*tuned, *here}):
        if not name.startswith(_OF_CODE) and tuned.get(name) not in (_VARIES, here.get(name)):
            return f"the setting '{name}'"
    return "the code" if _is_other_code(tuned, here) else ""


def is_other_code(tuned: Mapping[str, str] | None, module: nn.Module) -> bool:
    """Whether the user's own code that its calls run is not that of the module that was tuned."""
    return tuned is not None and _is_other_code(tuned, settings_of(module))


def _is_other_code(tuned: Mapping[str, str], here: Mapping[str, str]) -> bool:
    return tuned.get(_CODE, _VARIES) not in (_VARIES, here[_CODE])


def _settings(module: nn.Module, state: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Path of a part, name, hash."""
    parts = {path: part for path, part in module.named_modules() if not isinstance(part, torch.jit.ScriptModule)}
    classes = _classes(parts.values())
    named = named_by_calls(classes) | {FORWARD}
    left_out = {*TORCHS_OWN, *assigned_by_calls(set(map(type, parts.values())))}
    held: list[tuple[str, str, Any]] = []
    for path, part in parts.items():
        prefix = f"{path}." if path else ""
        settings: dict[str, Any] = {
            name: value
            for name, value in vars(part).items()
            if name in named and name not in left_out and f"{prefix}{name}" not in state
            if not isinstance(value, FunctionStandIn)  # it answers what the function answers
            # a hook may make it of weights before each call, as that of weight norm does
            if not (isinstance(value, Tensor) and forward_pre_hooks(part))
        }
        if isinstance(part, torch.fx.GraphModule):
            settings["code"] = part.code
        if hooks := [*forward_hooks(part).values(), *forward_pre_hooks(part).values()]:
            settings["forward hooks"] = hooks
        held += [(path, name, value) for name, value in settings.items()]
    hashes = setting_hashes([value for *_, value in held], named, parts.values())
    yield from ((path, name, hashed) for (path, name, _), hashed in zip(held, hashes, strict=True))
    values = [part for *_, value in held for part in (value if isinstance(value, list) else [value])]
    yield "", _CODE, _hash_of_code(*own_code(classes, named, left_out, values))


def _hash_of_code(functions: Iterable[types.FunctionType], numbers: Iterable[tuple[str, Any]]) -> str:
    return value_hash(sorted({*map(_hash_of_function, functions)}), sorted({value_hash(*each) for each in numbers}))


def _hash_of_function(function: types.FunctionType) -> str:
    """Of its code without the docstring, and the numbers and texts that it is given by default, or finds in its
    closure."""
    code = function.__code__
    if function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,):
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            given.append(cell.cell_contents)
    return value_hash(function.__qualname__, code, [value for value in given if isinstance(value, _GIVEN)])


def _classes(parts: Collection[nn.Module]) -> frozenset[type]:
    """Of the parts, and of the objects that their calls name."""
    classes: set[type] = set(map(type, parts))
    named = named_by_calls(frozenset(classes))
    seen: set[int] = set()
    open_: list[Any] = list(parts)
    while open_ and len(seen) < _MOST_OBJECTS:
        for name, value in vars(open_.pop()).items():
            if name in named and is_own_object(value) and id(value) not in seen:
                seen.add(id(value))
                classes.add(type(value))
                open_.append(value)
    return frozenset(classes)
