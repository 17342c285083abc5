"""An estimate of a call, on fake tensors: what it takes, and whether it writes to tensors that outlive it."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from togi.core.errors import BudgetError
from togi.footprint.prediction.cpu import AllocationProbe, highest_peak
from togi.footprint.prediction.fake_run import RunRecorder
from togi.footprint.storage_tracker import StorageLifetime
from togi.subject.batch import sliced_rows
from togi.subject.inputs import Inputs
from togi.subject.program import ProgramModule
from togi.torch_internals.modes import FunctionObserver, without_modes
from togi.torch_internals.operators import bound_arguments, written_arguments
from togi.torch_internals.tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    tensors_of,
    tree_leaves,
    tree_map_only,
)


class Estimate(NamedTuple):
    """The findings of a run on fake tensors."""

    peak_bytes: int
    result_bytes: int
    """Of its tensors, each by itself: one that is a view, or is there twice, is put together from parts too."""
    written: str
    """An operation that writes to a tensor from outside of the call; empty where there is none."""
    tracked: bool
    """The result takes part in autograd."""


class _Writes:
    """Sees what is written from outside, and lets no operation reach a real tensor: small ones would change."""

    def __init__(self, mode: FakeTensorMode, recorder: RunRecorder) -> None:
        self.written = ""
        """The last operation that wrote to a tensor from outside of the call."""
        self._mode, self._recorder = mode, recorder
        self._fakes: dict[int, tuple[Tensor, Tensor]] = {}

    def look(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        args, kwargs = tree_map_only(Tensor, self._fake, (args, kwargs))
        given = bound_arguments(operator, args, kwargs)  # ``out`` is given by name
        for name in written_arguments(operator):
            if any(self._is_outside(leaf) for leaf in tree_leaves(given.get(name))):
                self.written = str(operator)
        return args, kwargs

    def _fake(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        return self._fakes.setdefault(id(tensor), (self._mode.from_tensor(tensor), tensor))[0]

    def _is_outside(self, leaf: Any) -> bool:
        if not isinstance(leaf, Tensor):
            return False
        lifetime = self._recorder.lifetime_of(leaf)
        return lifetime is None or not lifetime.op


def estimate(function: Callable[..., Any], sample: Inputs, rows: int | None, probe: AllocationProbe) -> Estimate | None:
    """Estimate a call with the first ``rows`` rows, None for all; None where the call depends on values.

    What the function reaches besides its arguments (parameters) was there before and does not count. On the CPU the
    kernels that could set the peak are run alone, by ``probe``, for what they take on the way; on another device their
    own memory is not known before.

    Raises:
        BudgetError: a tensor of the run, which has no values, stays where the function keeps it.
    """
    recorder = RunRecorder(counts_existing=False)
    found = _recorded(function, sample, rows, recorder)
    _check_nothing_is_left(recorder)
    if found is None:
        return None
    on_cpu = all(tensor.device.type == "cpu" for tensor in sample.tensors())
    peak = highest_peak(recorder, probe).peak_bytes if recorder.calls and on_cpu else recorder.peak_bytes
    return found._replace(peak_bytes=peak)


def _recorded(function: Callable[..., Any], sample: Inputs, rows: int | None, recorder: RunRecorder) -> Estimate | None:
    """The run, and all of the estimate but its peak."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    given = sample.map(mode.from_tensor)
    writes = _Writes(mode, recorder)
    recorder.replace_arguments = writes.look
    copied = with_modules_of_its_own(function)
    try:
        with mode:
            part = sliced_rows(given, slice(rows))
            recorder.add_existing(part.tensors(), "input")
            with recorder:
                results = tensors_of(copied(*part.args, **part.kwargs))
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None
    finally:
        recorder.replace_arguments = None
    result_bytes = sum(tensor.numel() * tensor.element_size() for tensor in results)
    return Estimate(0, result_bytes, writes.written, any(tensor.requires_grad for tensor in results))


def _check_nothing_is_left(recorder: RunRecorder) -> None:
    if not _left(recorder):
        return
    gc.collect()
    if left := _left(recorder):
        what = f"a result of {left[0].op}" if left[0].op else "its input"
        raise BudgetError(
            f"the call was tried on tensors without values, and {what} stays where the function keeps it, in no module "
            "that togi could copy. Clear it there: it has no values. Let a module keep it, or fill a cache in a call "
            "without togi.within first."
        )


def _left(recorder: RunRecorder) -> list[StorageLifetime]:
    """What the run was given or made, and still lives."""
    return [each for each in recorder.lifetimes if each.died is None and (each.op or each.category)]


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
