"""The peak of an inference pass under a plan without running it, and which modules were running then.

On fake tensors, which have sizes and no values; what kernels take and give back inside an operation is measured, as for
the prediction of memory. Where a model cannot run on fake tensors (it decides by values) the pass is run for real under
the same book, which takes as long as a pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from togi.core.quantities import first_line
from togi.footprint.fit.chunk import Chunk
from togi.footprint.fit.inference.chunked import chunk, unchunk
from togi.footprint.module_tracker import Where
from togi.footprint.prediction.cpu import AllocatorPeak, Probe, highest_peak
from togi.footprint.prediction.fake_run import RunRecorder
from togi.footprint.step import Step
from togi.footprint.storage_tracker import tensors_of

_PROBED_BYTES = 4 << 30
"""Arguments of operations that are run alone to see what their kernels take."""
_HUNGRY = ("attention", "transformer_encoder")
_PARTS = 2
"""The second slice runs beside the whole result, and so do all that follow it."""


@dataclass(frozen=True)
class Peak:
    """Everything alive at the highest moment, what was there before the pass included."""

    bytes: int
    stack: tuple[str, ...]
    """The modules that were running then, the outermost first; empty before the first and after the last."""


@dataclass
class Simulation:
    """A pass that can be asked for its peak again and again."""

    step: Step
    mode: Any
    """The fake mode; None where the pass is real."""
    note: str = ""
    probe: Any = field(default_factory=lambda: Probe(limit_bytes=_PROBED_BYTES))
    """Measures what kernels take and give back inside one operation, for those near the peak."""

    def peak(self, chunks: Sequence[Chunk]) -> Peak:
        """Raises what the pass raises."""
        module = self.step.module
        parts = chunk(module, chunks, at_most_parts=_PARTS if self.mode else None)
        running = _Running({part: name for name, part in module.named_modules()})
        recording = RunRecorder(where=running.now)
        recording.add_existing([*module.parameters(), *module.buffers()], "parameter")
        recording.add_existing(tensors_of((self.step.sample.args, dict(self.step.sample.kwargs))), "input")
        try:
            with torch.random.fork_rng(), running.following(), recording, self.mode or nullcontext():
                self.step.run()
        finally:
            unchunk(parts)
        if not recording.calls:
            return Peak(recording.peak_bytes, ())
        height = self._highest(recording)
        return Peak(height.peak_bytes, running.stack_of(height.call.where))

    def _highest(self, recording: RunRecorder) -> AllocatorPeak:
        """Also asks attention, whose kernels may make what is much larger than all that goes in and out of them."""
        height = highest_peak(recording, self.probe)
        if not height.workspace_bytes:  # by number: fake tensors answer some questions by calls of their own
            at_peak = [call for call in recording.calls if call.number == recording.peak_at]
            height = height._replace(call=at_peak[-1] if at_peak else height.call)
        for call in recording.calls:
            hungry = any(word in call.func.name() for word in _HUNGRY)
            taken = (self.probe.peak_bytes(call) or 0) if hungry else 0
            if call.before_bytes + taken > height.peak_bytes:
                height = AllocatorPeak(call.before_bytes + taken, call, taken - call.made_bytes, ())
        return height


@dataclass
class _Running:
    """The stack of modules, written into the places that the recording asks for."""

    names: Mapping[nn.Module, str]

    def __post_init__(self) -> None:
        self._stack: list[nn.Module] = []
        self._stacks: dict[str, tuple[str, ...]] = {}

    def now(self) -> Where:
        stack = tuple(self.names[part] for part in self._stack if part in self.names)
        key = repr(stack)
        self._stacks[key] = stack
        return Where(key)

    def stack_of(self, where: Where) -> tuple[str, ...]:
        return self._stacks.get(where.module, ())

    @contextmanager
    def following(self) -> Iterator[None]:
        """torch's global module hooks, for the time of a pass."""
        handles = [
            register_module_forward_pre_hook(lambda part, _: self._stack.append(part)),
            register_module_forward_hook(lambda *_: self._left(), always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _left(self) -> None:
        if self._stack:
            self._stack.pop()


def simulation_of(step: Step) -> Simulation:
    """On fake tensors if the pass runs on them, else on the real ones."""
    try:
        found = _fake(step)
        found.peak(())
    except Exception as error:  # foreign code: a model may read values, or not be copied
        why = f"{type(error).__name__}: {first_line(error)}"
        note = f"The pass does not run on fake tensors ({why}); plans are tried on real ones."
        return Simulation(step, None, note)
    return found


def _fake(step: Step) -> Simulation:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    memo: dict[int, Any] = {}
    for tensor in [*step.module.parameters(), *step.module.buffers()]:
        memo[id(tensor)] = _fake_of(tensor, mode)
    module = copy.deepcopy(step.module, memo)
    return Simulation(replace(step, module=module, sample=step.sample.map(mode.from_tensor)), mode)


def _fake_of(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    fake = mode.from_tensor(tensor.detach())
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
