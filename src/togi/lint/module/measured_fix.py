"""A fix, measured: a technique applied alone, taking turns with the module as it is, in this process.

Its outputs for one sample must be faithful (``decide.faithful``); ``togi tune`` proves more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from togi.core.errors import Refused
from togi.core.records import Interval, Record, Scalar
from togi.decide.faithful import MAX_UNITS, within
from togi.decide.faster import WITHIN_PROCESS, Speed
from togi.lint.calls import MEASURE_S
from togi.lint.module.context import ModuleContext
from togi.measure import Turn, compare, take_turn, warm
from togi.techniques import technique
from togi.verify.units import OwnError, seeded_outputs

if TYPE_CHECKING:
    from togi.subject.inputs import Inputs

BUDGET_S = MEASURE_S


class MeasuredFix(Record):
    """One technique, tried alone."""

    technique: str
    options: dict[str, Scalar] = {}
    speedup_x: Interval | None = None
    """Time of the module as it is over that of the fixed one; None where it was not measured."""
    why_not: str = ""
    """Why it was not measured."""

    @property
    def speed(self) -> Speed:
        """What the measurement allows to say; ``UNCLEAR`` where there is none."""
        return Speed.UNCLEAR if self.speedup_x is None else WITHIN_PROCESS.speed(self.speedup_x)

    @property
    def faster(self) -> bool:
        return self.speed is Speed.FASTER

    @property
    def useless(self) -> bool:
        """Surely not faster."""
        return self.speedup_x is not None and WITHIN_PROCESS.at_most_same(self.speedup_x)

    @property
    def sentence(self) -> str:
        """``1.31x as fast with fold_batch_norm (1.27 to 1.35)``."""
        if self.speedup_x is None:
            return f"{self.technique} could not be tried: {self.why_not}"
        found = self.speedup_x
        interval = f"{found.low:.2f} to {found.high:.2f}"
        if self.faster:
            return f"{found.median:.2f}x as fast with {self.technique} ({interval}), measured here"
        if self.speed is Speed.SLOWER:
            return f"slower with {self.technique} alone ({found.median:.2f}x as fast, {interval}), measured here"
        return (
            f"no difference beyond noise with {self.technique} alone ({found.median:.2f}x, {interval}), measured here"
        )


def measure_fix(
    context: ModuleContext, name: str, options: dict[str, Scalar], *, seed: int = 0, budget_s: float = BUDGET_S
) -> MeasuredFix:
    """Apply the technique ``name`` to what was captured and race it against the original, both under ``no_grad``.

    The technique gets the captured graph, so the graph without it is what it is compared with: what capturing changes
    is not credited to it. Never raises for what the technique does.
    """
    start = context.captured
    if start is None:
        return MeasuredFix(technique=name, options=options, why_not=f"there is no graph ({context.capture_error})")
    try:
        fixed = technique(name).apply(start, dict(options))
    except Refused as refused:
        return MeasuredFix(technique=name, options=options, why_not=str(refused))
    except Exception as error:  # foreign code: a technique and what it calls
        return MeasuredFix(technique=name, options=options, why_not=f"{type(error).__name__}: {error}")
    with torch.no_grad():
        off = _error_in_units(start.module, fixed.module, start.samples[0], seed)
        if not within(off):
            why_not = f"its output is {off:.3g} times as far from the truth as the module's own (limit {MAX_UNITS:g})"
            return MeasuredFix(technique=name, options=options, why_not=why_not)
        found = _race(start.module, fixed.module, start.samples, context.device, seed, budget_s)
    return MeasuredFix(technique=name, options=options, speedup_x=found)


@dataclass(frozen=True)
class _Here:
    """A runner of this process."""

    name: str
    call: Callable[..., Any]
    samples: Sequence[Inputs]
    device: str

    def turn(self, passes: int) -> Turn:
        return take_turn(self.call, self.samples, passes, device=self.device)


def _race(
    original: Callable[..., Any],
    fixed: Callable[..., Any],
    samples: Sequence[Inputs],
    device: str,
    seed: int,
    budget_s: float,
) -> Interval | None:
    runners = [_Here("original", original, samples, device), _Here("fixed", fixed, samples, device)]
    for runner in runners:
        warm(runner.call, samples, limit_s=budget_s / 4, device=device)
    return (
        compare(runners[0], runners[1], budget_s=budget_s, seed=seed, criterion=WITHIN_PROCESS).entry("fixed").speedup_x
    )


def _error_in_units(original: nn.Module, fixed: nn.Module, sample: Inputs, seed: int) -> float:
    """Of the worst output, in units of the original's own error; infinite where the structure differs."""
    outputs, structure = seeded_outputs(original, sample.clone(), seed)
    found, structure_found = seeded_outputs(fixed, sample.clone(), seed)
    if structure != structure_found or [(t.shape, t.dtype) for t in outputs] != [(t.shape, t.dtype) for t in found]:
        return math.inf
    own = OwnError(original, sample, outputs, seed)
    return max((own.units(at, tensor) for at, tensor in enumerate(found)), default=0.0)
