"""Estimates on fake tensors what a call would allocate, and whether it writes to tensors that outlive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from torch import Tensor

from togi.footprint.prediction.cpu import Probe, highest_peak
from togi.footprint.prediction.fake_run import RunRecorder
from togi.subject.inputs import Inputs
from togi.torch_internals.fake import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from togi.torch_internals.operators import schema_of
from togi.torch_internals.pytree import tensors_of, tree_leaves, tree_map_only


class Estimate(NamedTuple):
    """What a run on fake tensors shows."""

    peak_bytes: int
    result_bytes: int
    written: str
    """An operation that writes to a tensor from outside of the call; empty where there is none."""
    tracked: bool
    """The result takes part in autograd."""


@final
@dataclass
class _WriteRecorder(RunRecorder):
    """Also sees what is written from outside, and lets no operation reach a real tensor: small ones would change."""

    mode: FakeTensorMode = field(default_factory=FakeTensorMode)
    written: str = ""
    fakes: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        args, kwargs = tree_map_only(Tensor, self._fake, (args, kwargs))
        for argument, value in zip(schema_of(operator).arguments, args, strict=False):
            if argument.is_write and any(self._outside(leaf) for leaf in tree_leaves(value)):
                self.written = str(operator)
        return super().operation(operator, args, kwargs)

    def _fake(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        return self.fakes.setdefault(id(tensor), (self.mode.from_tensor(tensor), tensor))[0]

    def _outside(self, leaf: Any) -> bool:
        if not isinstance(leaf, Tensor):
            return False
        lifetime = self.lifetime_of(leaf)
        return lifetime is None or not lifetime.op


def estimate(function: Callable[..., Any], sample: Inputs, rows: int | None, probe: Probe) -> Estimate | None:
    """Of a call with the first ``rows`` rows, None for all; None where the call depends on values.

    What the function reaches beside its arguments (parameters) was there before and does not count. On the CPU the
    kernels that could set the peak are run alone, by ``probe``, for what they take on the way; on another device their
    own memory is not known before.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    given = sample.map(mode.from_tensor)
    recorder = _WriteRecorder(mode=mode)
    try:
        with mode:
            part = given if rows is None else first_rows(given, 0, rows)
            recorder.add_existing(tensors_of((part.args, dict(part.kwargs))), "input")
            with recorder:
                results = function(*part.args, **part.kwargs)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None
    there = sum(lifetime.bytes for lifetime in recorder.lifetimes if not lifetime.op)
    peak = highest_peak(recorder, probe).peak_bytes if recorder.calls and _can_probe(sample) else recorder.peak_bytes
    found = tensors_of(results)
    made = {id(lifetime): lifetime.bytes for t in found if (lifetime := recorder.lifetime_of(t)) and lifetime.op}
    return Estimate(peak - there, sum(made.values()), recorder.written, any(t.requires_grad for t in found))


def _can_probe(sample: Inputs) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors_of((sample.args, dict(sample.kwargs))))


def first_rows(sample: Inputs, start: int, count: int) -> Inputs:
    """Rows ``start`` to ``start + count`` of every tensor that has dimensions."""
    return sample.map(lambda tensor: tensor[start : start + count] if tensor.dim() else tensor)
