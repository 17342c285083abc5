"""What modules keep from one call to the next in attributes of their own: seen from a run that changes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from togi.subject.nested import tensors_in
from togi.torch_internals.autograd import version_of
from togi.torch_internals.script import assigned_attributes

Held = Mapping[str, Sequence[tuple[Any, int]]]
"""By the attribute's name below the program: its tensors, or references to them, and how often each was written."""

_OF_ANY_MODULE = frozenset(vars(nn.Module()))


def held_by(program: nn.Module) -> Held:
    """The tensors in buffers and plain attributes of all modules, but for those of TorchScript."""
    return {
        f"{path}.{name}" if path else name: [(tensor, _written(tensor)) for tensor in tensors_in(value)]
        for path, module in program.named_modules()
        for name, value in _attributes(module)
    }


def changed(before: Held, after: Held) -> list[str]:
    """Names of attributes that do not hold the same tensors, or were written to."""
    return sorted(name for name in {*before, *after} if not _same(before.get(name, []), after.get(name, [])))


def kept_by(module: nn.Module, path: str, changed: Iterable[str]) -> tuple[str, ...]:
    """Names below one module of the program. ``changed``: all names below the program."""
    below = f"{path}." if path else ""
    names = {name.removeprefix(below) for name in changed if name.startswith(below)}
    return tuple(sorted({*names, *assigned_attributes(module)}))


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from module.named_buffers(recurse=False)
    if not isinstance(module, torch.jit.ScriptModule):
        for name, value in vars(module).items():
            if name not in _OF_ANY_MODULE and isinstance(value, Tensor | list | tuple | dict):
                yield name, value


def _written(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else version_of(tensor)


def _same(one: Sequence[tuple[Any, int]], other: Sequence[tuple[Any, int]]) -> bool:
    return len(one) == len(other) and all(a[0] is b[0] and a[1] == b[1] for a, b in zip(one, other, strict=True))
