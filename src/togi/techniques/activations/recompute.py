"""The technique ``recompute``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from togi.core.errors import FitError, Refused
from togi.core.quantities import plural, size
from togi.core.records import Facts, Recipe, Stage
from togi.techniques.base import Applies, Options, Refuses, StepTechnique

if TYPE_CHECKING:
    from togi.footprint.fit.plan import Plan
    from togi.subject.training import TrainingStep

_KEPT = (0.5, 0.25, 0.0, 0.75)
"""Shares that are tried."""


class Recompute(StepTechnique):
    """Keep a part of what the forward pass computes, and compute the rest again in the backward pass.

    What it does: what autograd keeps lies between two peaks: that of the step as it is (``keep=1``), and that of the
    step if nothing is kept (``keep=0``). ``keep`` is the share of that distance which a plan of ``togi fit`` leaves:
    what costs least time to compute again is let go first. Of a step that runs compiled, the partitioner of
    ``torch.compile`` decides what is kept, with ``keep`` as its ``activation_memory_budget``; fused code is one whole
    for a plan.

    When it applies: where a limit of memory was given (``--max-memory``), or it is named by ``--only``.

    When it refuses: no plan takes less than the step as it is, two runs of the step differ, or the module is one that
    ``torch.compile`` returned.

    Claim: none that holds in general. ``togi fit SUBJECT --memory SIZE`` shows the front of a step: what each peak
    costs.

    Source: https://arxiv.org/abs/1604.06174 (training deep nets with sublinear memory cost) and
    torch/_functorch/partitioners.py

    Cost and risk: time, a forward pass more at most, which is a third of a step where that is made of large products.
    A plan repeats the same kernels on the same values, so the step is the original's to the bit; what is compiled is
    right up to rounding. ``keep`` is aimed at by a forecast, and the partitioner's is no more than an estimate. What
    is compiled as one whole may be computed again as one whole, and its peak stays (``of=blocks`` fell from 2.3 to
    1.1 MB on four small blocks, ``of=loss`` not at all). What counts is the memory that the trial measured.
    Making a plan takes some steps. The plan is part of the record.
    """

    id = "recompute"
    stage = Stage.ACTIVATIONS
    rank = 1  # parts of a batch run under one plan
    saves_memory_alone = True
    step_to_the_bit = True

    def applies(self, facts: Facts) -> Applies | Refuses:
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{"keep": keep} for keep in _KEPT]

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 1 - 0.25 * math.pow(1 - _share(options), 1.5)  # the last results are the dearest

    def expected_memory(self, facts: Facts, options: Options) -> float:
        return 0.5 + 0.5 * _share(options)

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 5.0 + 8e-3 * (facts.latency_ms or 0.0)

    def preload(self) -> None:
        from togi.footprint.fit.training.fit import load_planner

        load_planner()

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        from togi.footprint.fit.forward import why_not_replaceable
        from togi.footprint.fit.plan import Plan
        from togi.techniques.engine.programs.compiled_step import is_compiled, partitioned_step

        try:
            keep = _share(options)
        except ValueError:
            raise Refused(f"keep must be a share from 0 to 1, not {options.get('keep')!r}") from None
        if is_compiled(step):
            return partitioned_step(step, keep)
        if reason := why_not_replaceable(step.module):
            raise Refused(f"no plan can be applied to this module: {reason}")
        try:
            plan = step.plan if isinstance(step.plan, Plan) else _planned(step, keep)
            plan.apply(step.module)
        except FitError as error:
            raise Refused(str(error).rstrip(".")) from None
        return step.changed(lambda: plan.remove(step.module), _in_words(plan), plan=plan)

    def step_lines(self, options: Options, recipe: Recipe, facts: Facts) -> str | None:
        if recipe.find("torch_compile") is None:
            return None  # a plan
        return f"import torch._functorch.config\ntorch._functorch.config.activation_memory_budget = {_share(options)}"


def _share(options: Options) -> float:
    """Raises ValueError for what is none."""
    keep = options.get("keep")
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 <= keep < 1:
        raise ValueError
    return float(keep)


def _planned(step: TrainingStep, keep: float) -> Plan:
    from togi.footprint.fit.training.fit import plan_to_keep
    from togi.measure.allocator import with_own_heap

    if not step.samples:
        raise Refused("the record holds no plan, and without a sample none can be made")
    return with_own_heap(lambda: plan_to_keep(step, keep))


def _in_words(plan: Plan) -> str:
    again_ms = sum(policy.recompute_ms for policy in plan.policies)
    changed = sum(policy.bytes for policy in plan.policies if policy.action != "keep")
    return (
        f"{plural(len(plan.policies), 'result')} of the forward pass saved otherwise or recomputed: {size(changed)}, "
        f"about {again_ms:.0f} ms of operations."
    )
