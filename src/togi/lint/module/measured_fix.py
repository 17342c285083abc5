"""The gain from a fix that a rule proposes: the technique that does the same, applied alone and raced with the module.

Its outputs for one sample must be faithful (``decide.faithful``); ``togi tune`` proves more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from togi.core.errors import Refused
from togi.core.records import Interval, Record, Scalar
from togi.decide.faithful import MAX_UNITS, within
from togi.decide.faster import WITHIN_PROCESS, Speed
from togi.lint.calls import ModuleRequest
from togi.lint.finding import Cost, Finding, Table
from togi.lint.module.context import ModuleContext
from togi.lint.rule import all_rules
from togi.measure import LocalRunner, race
from togi.techniques import technique
from togi.verify.own_error import OwnError, seeded_outputs

if TYPE_CHECKING:
    from togi.subject.inputs import Inputs


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
        """The verdict that the measurement allows; ``UNCLEAR`` where there is none."""
        return Speed.UNCLEAR if self.speedup_x is None else WITHIN_PROCESS.speed(self.speedup_x)

    @property
    def useless(self) -> bool:
        """Surely not faster."""
        return self.speedup_x is not None and WITHIN_PROCESS.at_most_same(self.speedup_x)

    @property
    def sentence(self) -> str:
        """``1.31x as fast with fold_batch_norm (1.27 to 1.35)``."""
        if self.speedup_x is None:
            return f"{self.technique} could not be tried: {self.why_not}"
        times = f"{self.speedup_x.median:.2f}x"
        interval = f"{self.speedup_x.low:.2f} to {self.speedup_x.high:.2f}"
        if self.speed is Speed.FASTER:
            return f"{times} as fast with {self.technique} ({interval}), measured here"
        if self.speed is Speed.SLOWER:
            return f"slower with {self.technique} alone ({times} as fast, {interval}), measured here"
        return f"no difference beyond noise with {self.technique} alone ({times}, {interval}), measured here"


def measure_fixes(
    context: ModuleContext, findings: Sequence[Finding], request: ModuleRequest
) -> dict[str, MeasuredFix]:
    """Each technique once, however many findings it fixes."""
    options_by_technique: dict[str, dict[str, Scalar]] = {}
    for finding in findings:
        name = all_rules()[finding.rule].technique
        if name is not None:
            options_by_technique.setdefault(name, {"multiple": 8} if name == "pad_channels" else {})
    return {name: _measure(context, name, options, request) for name, options in options_by_technique.items()}


def with_measured_costs(findings: Iterable[Finding], fixes: Mapping[str, MeasuredFix]) -> Iterator[Finding]:
    """The findings with what fixing brings; without those of ``pad_channels`` that padding surely does not help."""
    for finding in findings:
        fix = fixes.get(all_rules()[finding.rule].technique or "")
        if fix is None:
            yield finding
        elif fix.technique != "pad_channels" or not fix.useless:
            yield finding.model_copy(update={"cost": _cost(finding, fix)})


def _cost(finding: Finding, fix: MeasuredFix) -> Cost:
    before = finding.cost or Cost(text="", measured=False)
    faster = fix.speedup_x is not None and fix.speed is Speed.FASTER
    return before.model_copy(
        update={
            "text": f"{before.text}; {fix.sentence}" if before.text else fix.sentence,
            "measured": fix.speedup_x is not None,
            "speedup_x": fix.speedup_x.median if faster and fix.speedup_x is not None else None,
        }
    )


def table_of(fixes: Iterable[MeasuredFix]) -> Table:
    rows: list[tuple[Scalar, ...]] = []
    for fix in fixes:
        options = ", ".join(f"{key}={value}" for key, value in fix.options.items())
        interval = fix.speedup_x
        numbers = [round(x, 3) for x in (interval.median, interval.low, interval.high)] if interval else [None] * 3
        rows.append((fix.technique, options, *numbers, fix.sentence))
    return Table(
        title="Techniques tried alone against the module as it is, taking turns",
        columns=("technique", "options", "speed-up", "low", "high", "in words"),
        rows=tuple(rows),
    )


def _measure(context: ModuleContext, name: str, options: dict[str, Scalar], request: ModuleRequest) -> MeasuredFix:
    speedup_x = _speedup_x(context, name, options, request)
    if isinstance(speedup_x, str):
        return MeasuredFix(technique=name, options=options, why_not=speedup_x)
    return MeasuredFix(technique=name, options=options, speedup_x=speedup_x)


def _speedup_x(
    context: ModuleContext, name: str, options: dict[str, Scalar], request: ModuleRequest
) -> Interval | str | None:
    """Apply the technique ``name`` to what was captured and race it against the original, both under ``no_grad``.

    The technique gets the captured graph, so the graph without it is what it is compared with: what capturing changes
    is not credited to it. A technique that fails gives the reason.
    """
    start = context.captured
    if start is None:
        return f"there is no graph ({context.capture_error})"
    try:
        fixed = technique(name).apply(start, dict(options))
    except Refused as refused:
        return str(refused)
    except Exception as error:  # foreign code: a technique and what it calls
        return f"{type(error).__name__}: {error}"
    with torch.no_grad():
        off = _error_in_units(start.module, fixed.module, start.samples[0], request.seed)
        if not within(off):
            return f"its output is {off:.3g} times as far from the truth as the module's own (limit {MAX_UNITS:g})"
        return _race(start.module, fixed.module, start.samples, context.device, request)


def _race(
    original: nn.Module, fixed: nn.Module, samples: Sequence[Inputs], device: str, request: ModuleRequest
) -> Interval | None:
    budget_s = request.measure_s
    as_it_is = LocalRunner("original", original, samples, device)
    changed = LocalRunner("fixed", fixed, samples, device)
    for runner in (as_it_is, changed):
        runner.warm(budget_s / 4)
    raced = race([changed], as_it_is, budget_s=budget_s, seed=request.seed, criterion=WITHIN_PROCESS)
    return raced.entry("fixed").speedup_x


def _error_in_units(original: nn.Module, fixed: nn.Module, sample: Inputs, seed: int) -> float:
    """The error of the worst output, in units of the original's own; infinite where the structure differs."""
    outputs, structure = seeded_outputs(original, sample.clone(), seed)
    fixed_outputs, fixed_structure = seeded_outputs(fixed, sample.clone(), seed)
    forms = [[(tensor.shape, tensor.dtype) for tensor in tensors] for tensors in (outputs, fixed_outputs)]
    if structure != fixed_structure or forms[0] != forms[1]:
        return math.inf
    own = OwnError(original, sample, outputs, seed)
    return max((own.units(at, tensor) for at, tensor in enumerate(fixed_outputs)), default=0.0)
