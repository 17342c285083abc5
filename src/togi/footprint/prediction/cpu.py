"""Predicts the peak of torch's CPU allocator, kernels' own workspace included.

The peak of the tensors is a lower bound. Which algorithm a convolution chooses, and what it reorders, depends on the
shapes, the instruction set and the version: no formula holds for all. So single operations run, on zeros of the same
shapes and strides, under the allocator's own count. Those that could reach highest come first, until none that is left
could be higher, so only those near the peak run (best-first branch and bound).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from togi.footprint.prediction.fake_run import RunRecorder, baseline_bytes, by_category, moment_of, record
from togi.footprint.prediction.operation_call import OperationCall, OtherSpec, TensorSpec, is_spec, specs_of
from togi.footprint.prediction.record import Prediction
from togi.footprint.step import Step
from togi.measure.memory import torch_allocator_peak_bytes
from togi.torch_internals.autograd import below_autocast
from togi.torch_internals.modes import without_modes
from togi.torch_internals.profiler import profiler_records
from togi.torch_internals.tensors import tree_leaves, tree_map

_PROBE_LIMIT_BYTES = 4 << 30
_WORKSPACE_X = 2
"""A kernel is taken to need at most that many times its arguments and results besides them: reorders, per-thread
buffers."""
_CHANNEL_BLOCK = 16
"""oneDNN pads the channels of every group to blocks: of a depthwise weight it makes up to 256 times as much."""


def predict_cpu(step: Step, *, batch: int | None = None, compile: bool = False) -> Prediction:
    """The peak of torch's CPU allocator in a step after the first, to the byte where kernels could be asked.

    Args:
        step: as ``make_step`` makes it. It is consumed: its module's tensors are replaced by fake ones.
        batch: rows of the inputs, which may be more than this machine could hold.
        compile: the module is compiled by ``torch.compile``; loss and optimizer are not.

    Raises:
        SubjectError: the run depends on values, which fake tensors do not have; it cannot be compiled.
    """
    notes = [*step.notes]
    recorder = record(step, batch=batch, fix_results=_fixed_on_cpu, compile=compile, notes=notes)
    peak = highest_peak(recorder, AllocationProbe(limit_bytes=_PROBE_LIMIT_BYTES))
    if peak.unmeasured:
        notes.append(
            f"Kernels near the peak that could not be run alone to see their workspace: {_names(peak.unmeasured)}."
        )
    if peak.by_value:
        notes.append(f"Kernels near the peak whose workspace depends on the values: {_names(peak.by_value)}.")
    return Prediction(
        device="cpu",
        train=step.train,
        compiled=compile,
        peak_bytes=peak.peak_bytes,
        low_bytes=peak.low_bytes,
        high_bytes=peak.high_bytes,
        reserved_bytes=peak.peak_bytes,
        reserved_low_bytes=peak.low_bytes,
        reserved_high_bytes=peak.high_bytes,
        baseline_bytes=baseline_bytes(recorder),
        peak=moment_of(peak.call, recorder),
        by_category=by_category(recorder, peak.call, peak.peak_bytes),
        notes=(*notes, *recorder.notes),
    )


class AllocatorPeak(NamedTuple):
    """The most that the run allocates at once."""

    peak_bytes: int
    call: OperationCall
    workspace_bytes: int
    """Taken by the kernel itself, beyond its results; 0 where the peak is between operations' starts and ends."""
    low_bytes: int
    """With those whose need depends on values at their least."""
    unmeasured: tuple[OperationCall, ...] = ()
    """Operations that could be higher and could not be run."""
    by_value: tuple[OperationCall, ...] = ()
    """Operations that took more with one set of values than with another, and are the peak with the one."""

    @property
    def high_bytes(self) -> int:
        return max([self.peak_bytes, *(upper_bound_bytes(call) for call in self.unmeasured)])


def upper_bound_bytes(call: OperationCall) -> int:
    """Bytes that cannot be exceeded while the operation runs."""
    extra = _WORKSPACE_X * (call.read_bytes + call.made_bytes + _blocked_weight_bytes(call))
    return call.before_bytes + call.made_bytes + extra


def _blocked_weight_bytes(call: OperationCall) -> int:
    """Bytes of a grouped convolution's weight: (groups x outputs, inputs, *kernel) with both channels padded."""
    place = {"aten::convolution": 1, "aten::convolution_backward": 2}.get(call.func.name().partition(".")[0])
    if place is None:
        return 0
    positional = call.args[0]
    weight, groups = positional[place], positional[-1 if place == 1 else -2]
    outputs, inputs = (-(-size // _CHANNEL_BLOCK) for size in (weight.shape[0] // groups, weight.shape[1]))
    return int(groups * outputs * inputs * _CHANNEL_BLOCK**2 * prod(weight.shape[2:]) * weight.dtype.itemsize)


def highest_peak(recorder: RunRecorder, probe: AllocationProbe) -> AllocatorPeak:
    """The peak, each operation that could be it run alone."""
    best = AllocatorPeak(recorder.peak_bytes, recorder.calls[max(0, recorder.peak_at - 1)], 0, recorder.peak_bytes)
    unmeasured: list[OperationCall] = []
    by_value: list[OperationCall] = []
    for call in sorted(filter(_may_need_workspace, recorder.calls), key=upper_bound_bytes, reverse=True):
        if upper_bound_bytes(call) <= best.peak_bytes:
            break
        measured = probe.peak_bytes(call)
        if measured is None:
            unmeasured.append(call)
            continue
        least, most = measured
        low_bytes = max(best.low_bytes, call.before_bytes + least)
        if call.before_bytes + most > best.peak_bytes:
            best = AllocatorPeak(call.before_bytes + most, call, most - call.made_bytes, low_bytes)
        best = best._replace(low_bytes=low_bytes)
        if least < most and call.before_bytes + most > low_bytes:
            by_value.append(call)
    return best._replace(
        unmeasured=tuple(call for call in unmeasured if upper_bound_bytes(call) > best.peak_bytes),
        by_value=tuple(by_value) if best.low_bytes < best.peak_bytes else (),
    )


def _names(calls: Iterable[OperationCall]) -> str:
    return ", ".join(sorted({str(call.func) for call in calls}))


def _may_need_workspace(call: OperationCall) -> bool:
    """Views and pointwise operations write their results and nothing else; the latter where they need not convert:
    operands of several dtypes, and integers that become floats, are copied whole to one dtype first."""
    return not (call.func.is_view or (torch.Tag.pointwise in call.func.tags and _computed_as_they_are(call)))


def _computed_as_they_are(call: OperationCall) -> bool:
    leaves = tree_leaves(call.args, is_leaf=is_spec)
    dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, TensorSpec)} | {
        leaf for leaf in leaves if isinstance(leaf, torch.dtype)
    }
    return len(dtypes) == 1 and dtypes.pop().is_floating_point


class AllocationProbe:
    """Measures what kernels need by running single operations, and remembers it."""

    def __init__(self, *, limit_bytes: int) -> None:
        """``limit_bytes``: operations whose arguments take more are not run."""
        self.limit_bytes = limit_bytes
        self.measured: dict[str, tuple[int, int] | None] = {}

    def peak_bytes(self, call: OperationCall) -> tuple[int, int] | None:
        """The most that the operation holds besides its arguments, results included: with values for which it is least
        and most, of zeros and ones; None where it cannot be run."""
        if call.key not in self.measured:
            if profiler_records():  # the caller's own: torch has one at a time
                return None
            self.measured[call.key] = self._measure(call)
        return self.measured[call.key]

    def _measure(self, call: OperationCall) -> tuple[int, int] | None:
        if call.read_bytes + call.made_bytes > self.limit_bytes:
            return None
        peaks = [bytes for value in (0, 1) if (bytes := self._with_values(call, value)) is not None]
        return (min(peaks), max(peaks)) if peaks else None

    def _with_values(self, call: OperationCall, value: int) -> int | None:
        forked = torch.random.fork_rng(devices=[])
        with without_modes(), below_autocast(), forked, torch.set_grad_enabled(call.grad_enabled):
            try:
                args, kwargs = filled(call.args, value)
                call.func(*args, **kwargs)  # what a kernel builds once is not what every call takes
                args, kwargs = filled(call.args, value)  # in case it wrote into them
                return torch_allocator_peak_bytes(lambda: call.func(*args, **kwargs)) or 0
            except (RuntimeError, NotDense):  # the kernel refuses the values: the caller reports it as not measured
                return None


def zeros_of(specs: Any) -> Any:
    """Real tensors of the shapes, strides and dtypes."""
    return filled(specs, 0)


class NotDense(Exception):
    """An argument of a kernel that cannot be made from a size."""


def filled(specs: Any, value: int) -> Any:
    """Real tensors of the shapes, strides and dtypes. Integers are zeros always: they may be indices. Generators are
    copies, in the same state."""
    return tree_map(lambda leaf: _filled(leaf, value), specs, is_leaf=is_spec)


def _filled(spec: Any, value: int) -> Any:
    if isinstance(spec, torch.Generator):
        return spec.clone_state()
    if isinstance(spec, OtherSpec):
        raise NotDense(spec.kind)
    if not isinstance(spec, TensorSpec):
        return spec
    is_integer = not (spec.dtype.is_floating_point or spec.dtype.is_complex or spec.dtype is torch.bool)
    elements = max(1, spec.bytes // spec.dtype.itemsize)
    storage = torch.full((elements,), 0 if is_integer else value, dtype=spec.dtype)
    return storage.as_strided(spec.shape, spec.stride)


def sizes_by_running(func: Any, args: Any, kwargs: Any, results: Any) -> Any:
    """Fake results with the shapes that the kernel really gives, where the fake kernel does not know one of them.

    oneDNN decides the size of a recurrent layer's workspace, which autograd keeps.
    """
    with without_modes():
        real_args, real_kwargs = zeros_of(specs_of((args, kwargs)))
        real = [tuple(t.shape) if isinstance(t, Tensor) else () for t in func(*real_args, **real_kwargs)]
    return tuple(
        t if not isinstance(t, Tensor) or tuple(t.shape) == shape else t.new_empty(shape)
        for t, shape in zip(tree_leaves(results), real, strict=True)
    )


def _fixed_on_cpu(func: Any, args: Any, kwargs: Any, results: Any) -> Any:
    if "mkldnn_rnn_layer.default" in str(func):
        return sizes_by_running(func, args, kwargs, results)
    return results
