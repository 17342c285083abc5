"""The architecture of a module as text, which a record keeps: a plan, or what was proven of its training step."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from togi.core.errors import nearest

if TYPE_CHECKING:
    from torch import nn

_REPEATS = 3
"""So often is a part there that repeats: what is made of one of them serves two more."""


def architecture_of(module: nn.Module) -> dict[str, str]:
    """The class and parameters of each module, by its name in ``named_modules()``: ``Linear(weight float32 [64, 64],
    bias float32 [64])``."""
    described = {}
    for name, part in module.named_modules():
        parameters = [_parameter(*named) for named in part.named_parameters(recurse=False)]
        described[name] = f"{type(part).__name__}({', '.join(parameters)})"
    return described


def repeated_parts(module: nn.Module) -> list[tuple[nn.Module, ...]]:
    """Parts that are called, have parts and parameters of their own, and are there three times and more with the same
    classes and sizes inside: the layers of a stack. None of them is inside of another such."""
    import torch
    from torch import nn

    kinds = dict[str, Any]()
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):  # whose class has no forward, and which nothing is made of
            continue
        never_called = type(part).forward is nn.Module.forward  # a list of modules
        if name and not never_called and any(part.children()) and any(True for _ in part.parameters()):
            kinds[name] = type(part), tuple(architecture_of(part).items())
    counted = list(kinds.values())
    found, outermost = defaultdict[Any, list[nn.Module]](list), list[str]()
    for name, kind in kinds.items():
        if counted.count(kind) >= _REPEATS and not any(name.startswith(f"{other}.") for other in outermost):
            outermost.append(name)
            found[kind].append(module.get_submodule(name))
    return [tuple(parts) for parts in found.values() if len(parts) >= _REPEATS]


def _parameter(name: str, parameter: nn.Parameter) -> str:
    from torch.nn.parameter import is_lazy

    dtype = str(parameter.dtype).removeprefix("torch.")
    return f"{name} {dtype} {'not made yet' if is_lazy(parameter) else list(parameter.shape)}"


def differences_of(planned: dict[str, str], actual: dict[str, str]) -> list[str]:
    """The differences of another module, in the order of the plan's."""
    missing = [
        f"there is no module '{name}' ({planned[name]}) in it{nearest(name, actual)}"
        for name in planned
        if name not in actual
    ]
    other = [
        f"'{name}' is {actual[name]} and was {planned[name]}"
        if name
        else f"it is {actual[name]} and was {planned[name]}"
        for name in planned
        if actual.get(name, planned[name]) != planned[name]
    ]
    added = [f"'{name}' ({actual[name]}) was not there" for name in actual if name not in planned]
    return [*other, *missing, *added]
