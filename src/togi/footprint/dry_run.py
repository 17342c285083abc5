"""Runs of a function on tensors without values, which leave nothing behind in its objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from togi.footprint.kept import Kept
from togi.subject.program import ProgramModule
from togi.torch_internals.modes import FunctionObserver, without_modes


@dataclass(frozen=True)
class DryRun:
    """A function for runs in which no operation reaches a real tensor."""

    program: Callable[..., Any]
    kept: Kept
    """What it reaches, as it was before the first run."""


@contextmanager
def dry_run_of(function: Callable[..., Any]) -> Iterator[DryRun]:
    """A copy of a function that runs copies of the modules that it reaches. Afterwards its other objects hold no tensor
    without values, and autocast keeps none."""
    program = with_modules_of_its_own(function)
    dry = DryRun(program, Kept(program))
    not_copied = dry.kept if program is function else dry.kept.also_in(Kept(function))
    try:
        yield dry
    finally:
        torch.clear_autocast_cache()
        not_copied.put_back()


def with_modules_of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy that runs copies of the modules that it reaches, with the same tensors: what modules keep of a call, they
    keep in the copies. The function itself where it reaches none, or they cannot be copied.

    Only for runs in which no operation reaches a real tensor.
    """
    try:
        program = function if isinstance(function, nn.Module) else ProgramModule(function)
        parts = [part for part in program.modules() if isinstance(part, torch.jit.ScriptModule)]  # copies have weights
        shared = [*parts, *(parameter for parameter in program.parameters() if not is_lazy(parameter))]
        with without_modes(), _TensorsAsTheyAre():
            copied = copy.deepcopy(program, {id(each): each for each in shared})
    except Exception:  # foreign code: no copy
        return function
    return copied if program is function else copied.forward


class _TensorsAsTheyAre(FunctionObserver):
    """Inside, a copy of a tensor is the tensor itself. Parameters, and tensors without a shape yet, copy themselves."""

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if function is Tensor.__deepcopy__ and not is_lazy(args[0]):
            return args[0]
        return function(*args, **kwargs)
