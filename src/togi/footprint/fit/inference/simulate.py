"""An inference pass without running it: its module calls, and its peak under a plan with what was running then.

On fake tensors, which have sizes and no values; what kernels take and give back inside an operation is measured, as for
the prediction of memory. Where a model cannot run on fake tensors (it decides by values) the pass is run for real under
the same book, which takes as long as a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.quantities import first_line
from togi.footprint.fit.forward import restore, why_not_replaceable
from togi.footprint.fit.inference.chunked import chunk, constants, named_leaves, unknown
from togi.footprint.fit.policies import Chunk
from togi.footprint.prediction.cpu import AllocationProbe, AllocatorPeak, highest_peak
from togi.footprint.prediction.fake_run import RunRecorder
from togi.footprint.step import Step, fake_copy
from togi.subject.behaviour import cuda_devices
from togi.torch_internals.modules import ModuleTracker, Where
from togi.torch_internals.tensors import storage_key, tensors_of

_PROBED_BYTES = 4 << 30
"""Arguments of operations that are run alone to see what their kernels take."""
_HUNGRY = ("attention", "transformer_encoder")
_PARTS = 2
"""The second slice runs next to the whole result, and so do all that follow it."""


@dataclass(frozen=True)
class MemoryPeak:
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
    probe: Any = field(default_factory=lambda: AllocationProbe(limit_bytes=_PROBED_BYTES))
    """Measures what kernels take and give back inside one operation, for those near the peak."""

    def peak(self, chunks: Sequence[Chunk]) -> MemoryPeak:
        """Raises what the pass raises."""
        module = self.step.module
        parts = chunk(module, chunks, at_most_parts=_PARTS if self.mode else None, asks=False)
        tracker = ModuleTracker(module)
        stacks = _Stacks(tracker)
        recording = RunRecorder(where=stacks.now)
        recording.add_step(self.step)
        try:
            with torch.random.fork_rng(cuda_devices()), tracker.following(), recording, self.mode or nullcontext():
                self.step.run()
        finally:
            restore(parts)
        if not recording.calls:
            return MemoryPeak(recording.peak_bytes, ())
        height = self._highest(recording)
        return MemoryPeak(height.peak_bytes, stacks.stack_of(height.call.where))

    def _highest(self, recording: RunRecorder) -> AllocatorPeak:
        """Also asks attention, whose kernels may make what is much larger than all that goes in and out of them."""
        height = highest_peak(recording, self.probe)
        if not height.workspace_bytes:  # by number: fake tensors answer some questions by calls of their own
            at_peak = [call for call in recording.calls if call.number == recording.peak_at]
            height = height._replace(call=at_peak[-1] if at_peak else height.call)
        for call in recording.calls:
            hungry = any(word in call.func.name() for word in _HUNGRY)
            taken = max((self.probe.peak_bytes(call) or (0,)) if hungry else (0,))
            if call.before_bytes + taken > height.peak_bytes:
                height = AllocatorPeak(call.before_bytes + taken, call, taken - call.made_bytes, height.low_bytes)
        return height


class _Stacks:
    """Keeps the stack of modules at each operation, behind a key that fits into its ``Where``."""

    def __init__(self, tracker: ModuleTracker) -> None:
        self._tracker = tracker
        self._stacks: dict[str, tuple[str, ...]] = {}

    def now(self) -> Where:
        stack = self._tracker.running
        key = repr(stack)
        self._stacks[key] = stack
        return Where(key)

    def stack_of(self, where: Where) -> tuple[str, ...]:
        return self._stacks.get(where.module, ())


def simulation_of(step: Step) -> Simulation:
    """On fake tensors if the pass runs on them, else on the real ones."""
    try:
        simulation = Simulation(*fake_copy(step))
        simulation.peak(())
    except Exception as error:  # foreign code: a model may read values, or not be copied
        reason = f"{type(error).__name__}: {first_line(error)}"
        return Simulation(
            step, None, f"The pass does not run on fake tensors ({reason}); plans are tried on real ones."
        )
    return simulation


@dataclass(frozen=True)
class ModuleCall:
    """All that decides whether two calls are alike."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: tuple[torch.dtype, ...]
    constants: Mapping[str, str]
    unknown: str
    result_bytes: int


@dataclass
class Site:
    """A module and its calls in one pass."""

    name: str
    part: nn.Module
    calls: list[ModuleCall] = field(default_factory=list)
    problem: str = ""

    @property
    def weights_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.part.parameters())

    @property
    def leaves(self) -> int:
        """Modules in it that have no parts: what a call of it costs at least grows with them."""
        return sum(not list(part.children()) for part in self.part.modules())

    @property
    def kind(self) -> str:
        """Equal for modules of one class, with parameters of equal shapes, that are called alike."""
        weights = [(name, tuple(p.shape), p.dtype) for name, p in self.part.named_parameters()]
        inner = [type(part).__name__ for part in self.part.modules()]
        return repr((type(self.part), inner, weights, [str(call) for call in self.calls]))


def sites_of(simulation: Simulation) -> dict[str, Site]:
    """The modules that were called, by name; one pass of the simulation's step."""
    module = simulation.step.module
    sites = {name: Site(name, part) for name, part in module.named_modules()}
    with _following(sites), torch.random.fork_rng(cuda_devices()), simulation.mode or nullcontext():
        simulation.step.run()
    called = {name: site for name, site in sites.items() if site.calls}
    for site in called.values():
        site.problem = _problem(site)
    return called


@contextmanager
def _following(sites: Mapping[str, Site]) -> Iterator[None]:
    with ExitStack() as hooks:
        for site in sites.values():
            if not isinstance(site.part, torch.jit.ScriptModule):
                hook = site.part.register_forward_hook(_noting(site), with_kwargs=True)
                hooks.callback(hook.remove)
        yield


def _noting(site: Site) -> Any:
    def note(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        leaves = named_leaves(type(part).forward, args, kwargs)
        tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
        results = tensors_of(output)
        site.calls.append(
            ModuleCall(
                {name: tuple(tensor.shape) for name, tensor in tensors.items()},
                tuple(tensor.dtype for tensor in tensors.values()),
                constants(leaves),
                unknown(leaves),
                sum(result.nbytes for result in results),
            )
        )
        if not site.problem and _shared(results, [*tensors.values(), *part.parameters()]):
            site.problem = "it returns a tensor that it was given, or a view of one"

    return note


def _shared(results: list[Tensor], others: list[Tensor]) -> bool:
    there = {storage_key(tensor.untyped_storage()) for tensor in others}
    return any(storage_key(result.untyped_storage()) in there for result in results)


def _problem(site: Site) -> str:
    first = site.calls[0]
    if reason := why_not_replaceable(site.part) or site.problem:
        return reason
    if first.unknown:
        return f"it gets {first.unknown}, of which it is not known how it would be cut"
    if any((call.shapes.keys(), call.constants) != (first.shapes.keys(), first.constants) for call in site.calls):
        return f"it is called {len(site.calls)} times, in different ways"
    return ""
