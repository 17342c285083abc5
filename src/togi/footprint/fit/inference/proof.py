"""The planned pass against the unmodified one: outputs, and the independence of what is cut, at its full size.

Outputs are compared to the bit. Where they differ (a matrix product of another size takes another kernel, which sums in
another order), their error against the module in float64 must be within a few times the unmodified module's own, the
same unit by which togi judges everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from togi.core.quantities import first_line
from togi.decide.faithful import in_units, within
from togi.footprint.fit.chunk import CUT, Chunk
from togi.footprint.fit.inference.leaves import named_leaves
from togi.footprint.fit.record import Proof
from togi.footprint.guard.independence import Cut, why_kept_changes
from togi.footprint.step import Step
from togi.subject.inputs import Inputs
from togi.verify.compare import continuous, difference, identical, mismatches, plain, sentinel_threshold
from togi.verify.float64 import float64_arithmetic, nudged, nudged_inputs, wide, widened, widened_inputs
from togi.verify.units import FEW, discrete_units, epsilon_of, share, units

_NUDGES = 8


@dataclass
class Reference:
    """What the unmodified module answers, and, once it is asked for, how exactly."""

    step: Step
    outputs: list[Tensor]
    form: Any
    seed: int
    note: str = ""
    """Why there is no float64 to compare with."""
    _truth: list[Tensor] | None = None
    _nudges: list[list[Tensor]] = field(default_factory=list)

    def compare(self, outputs: Sequence[Tensor], form: Any) -> Proof:
        """``exact``, or the largest error in units of the module's own."""
        if form != self.form or [(t.shape, t.dtype) for t in outputs] != [(t.shape, t.dtype) for t in self.outputs]:
            return Proof(exact=False, gradients=0, differences=("the result has another form",), units=float("inf"))
        different = [at for at, (a, b) in enumerate(zip(outputs, self.outputs, strict=True)) if not identical(a, b)]
        if not different:
            return Proof(exact=True, gradients=0, outputs=len(outputs))
        self._make_truth()
        errors = {at: self._units(at, outputs[at]) for at in different}
        differences = tuple(f"output {at}: {units:.2g} times the module's own error" for at, units in errors.items())
        return Proof(
            exact=False, gradients=0, outputs=len(outputs), units=max(errors.values()), differences=differences[:10]
        )

    def _units(self, at: int, found: Tensor) -> float:
        assert self._truth is not None
        eager, truth = plain(self.outputs[at]), plain(self._truth[at])
        others = [plain(nudge[at]) for nudge in self._nudges]
        if not continuous(self.outputs[at]):
            own = share(int((eager != truth).sum()), eager)
            more = [share(mismatches(other, truth, eager), eager) for other in others]
            unit = discrete_units([own], [more])[0]
            return in_units(share(mismatches(plain(found), truth, eager), eager), unit.rms)
        limit = sentinel_threshold(eager)
        unit = units(
            [difference(eager, truth, eager, limit)],
            [[difference(other, truth, eager, limit) for other in others]],
            epsilon_of(self.outputs[at]),
        )[0]
        error = difference(plain(found), truth, eager, limit)
        return max(in_units(error.rms, unit.rms), in_units(error.peak, unit.peak))

    def _make_truth(self) -> None:
        if self._truth is not None:
            return
        module, sample = self.step.module, self.step.sample
        try:
            with torch.no_grad(), float64_arithmetic(), torch.random.fork_rng():
                torch.manual_seed(self.seed)
                wider = widened(module, str(self.outputs[0].device))
                given = widened_inputs(sample, str(self.outputs[0].device))
                truth = _tensors(wider(*given.args, **given.kwargs))
            if [t.shape for t in truth] != [t.shape for t in self.outputs]:
                raise ValueError("its outputs have other shapes in float64")
        except Exception as error:  # foreign code: a forward may insist on its own dtype
            self.note = f"It does not run in float64 ({first_line(error)}): outputs are compared with its own, nudged."
            truth = [wide(plain(t)) for t in self.outputs]
        self._truth = truth
        if self.note or any(t.numel() < FEW for t in self.outputs):
            self._nudges = [found for k in range(_NUDGES) if (found := self._nudged(k))]

    def _nudged(self, number: int) -> list[Tensor]:
        """Answers with weights and inputs moved by a rounding: what any order of evaluation may give."""
        try:
            module = nudged(self.step.module, self.seed + number)
            given = nudged_inputs(self.step.sample, self.seed + number)
            with torch.no_grad(), torch.random.fork_rng():
                torch.manual_seed(self.seed)
                found = _tensors(module(*given.args, **given.kwargs))
        except Exception as error:  # foreign code: a module may insist on exact values
            self.note = self.note or f"The module's own error could not be sampled ({first_line(error)})."
            return []
        return found if [t.shape for t in found] == [t.shape for t in self.outputs] else []


def faithful(proof: Proof) -> bool:
    return proof.exact or within(proof.units)


def run_for_outputs(step: Step, seed: int) -> tuple[list[Tensor], Any]:
    """Tensors and the structure around them."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        return split(step.module(*step.sample.args, **step.sample.kwargs))


def split(output: Any) -> tuple[list[Tensor], Any]:
    """Tensors, and what else there is as text, in which objects count by their class."""
    leaves, form = tree_flatten(output)
    others = [repr(leaf) if isinstance(leaf, bool | int | float | str | None) else type(leaf) for leaf in leaves]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)], (str(form), str(others))


def why_dependent_in_full(step: Step, chunks: Sequence[Chunk], seed: int) -> dict[str, str]:
    """One pass; at the calls of the modules that are cut, everything but one slice is replaced. By module, what became
    of the slice's result where it changed."""
    found: dict[str, str] = {}
    parts = dict(step.module.named_modules())
    asking = _Asking(found)
    with ExitStack() as hooks:
        for entry in chunks:
            hook = parts[entry.module].register_forward_pre_hook(asking.about(entry), with_kwargs=True)
            hooks.callback(hook.remove)
        run_for_outputs(step, seed)
    return found


class _Asking:
    """Modules inside one that is asked are called with replaced values: those calls are not asked."""

    def __init__(self, found: dict[str, str]) -> None:
        self._found, self._busy = found, False

    def about(self, entry: Chunk) -> Any:
        def ask(part: nn.Module, args: Any, kwargs: Any) -> None:
            if self._busy or entry.module in self._found:
                return
            self._busy = True
            try:
                if reason := _why(part, entry, Inputs(args, kwargs)):
                    self._found[entry.module] = reason
            finally:
                self._busy = False

        return ask


def _why(part: nn.Module, entry: Chunk, sample: Inputs) -> str:
    leaves = named_leaves(type(part).forward, sample.args, sample.kwargs)
    shapes = [entry.inputs[name] for name, leaf in leaves.items() if isinstance(leaf, Tensor)]
    cut = Cut(tuple(shape.index(CUT) if CUT in shape else None for shape in shapes))
    tensors = [leaf for leaf in leaves.values() if isinstance(leaf, Tensor)]
    length = next(t.shape[d] for t, d in zip(tensors, cut.dimensions, strict=True) if d is not None)
    if length <= entry.size:
        return ""
    start = length // entry.size // 2 * entry.size
    count = min(entry.size, length - start)
    change = why_kept_changes(part.forward, sample, cut, entry.outputs, start, count)
    return f"the results of slices {start} to {start + count} change when all others become {change}" if change else ""


def _tensors(output: Any) -> list[Tensor]:
    return split(output)[0]
