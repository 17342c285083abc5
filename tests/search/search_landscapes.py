"""Synthetic subjects for search tests: a family of fake techniques, and landscapes that say how each recipe would end.

Shaped after what real models show (engines differ most, layouts matter to some engines, engines fold on their own,
quantization belongs to one engine, some combinations fail), everything drawn from a seed. Nothing here is a result.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

from tests.made_up_machine import machine
from togi.core.records import (
    ErrorReport,
    Facts,
    Footprint,
    Interval,
    Outcome,
    Recipe,
    Stage,
    Timing,
    Trial,
)
from togi.techniques.base import Applies, Options, Package, Refuses, Technique

MACHINE = machine()
CONVOLUTIONAL = Facts(machine=MACHINE, module_class="Net", functions={"conv2d": 50, "batch_norm": 50}, latency_ms=50)
TRANSFORMER = Facts(machine=MACHINE, module_class="Bert", functions={"linear": 70, "layer_norm": 25}, latency_ms=50)


class Fake(Technique):
    """A technique made of its arguments; an instance stands in for a class in a file."""

    def __init__(
        self,
        id: str,
        stage: Stage,
        *,
        options: Sequence[Options] = ({},),
        expected_speedup: float = 1.0,
        cost_s: float = 0.0,
        function: str = "",
        **declared: Any,
    ) -> None:
        self.id, self.stage = id, stage  # type: ignore[misc]
        self._options, self._expected_speedup, self._cost_s, self._function = (
            options,
            expected_speedup,
            cost_s,
            function,
        )
        for name, value in declared.items():
            setattr(self, name, value)

    def applies(self, facts: Facts) -> Applies | Refuses:
        if self._function and self._function not in facts.functions:
            return Refuses(f"the model never calls {self._function}")
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        return self._options

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return self._expected_speedup

    def cost_s(self, facts: Facts, options: Options) -> float:
        return self._cost_s

    def apply(self, candidate: Any, options: Options) -> Any:
        raise NotImplementedError


def engine(id: str, **declared: Any) -> Fake:
    return Fake(id, Stage.ENGINE, provides=frozenset({f"engine:{id}"}), **declared)


def grad_mode(id: str) -> Fake:
    mode = frozenset({"grad_mode"})
    return Fake(id, Stage.RUNTIME, provides=mode, conflicts=mode, expected_speedup=1.01)


def grid(**values: Sequence[Any]) -> tuple[Options, ...]:
    return tuple(dict(zip(values, row, strict=True)) for row in itertools.product(*values.values()))


BOTH = (True, False)


def family() -> dict[str, Technique]:
    found: list[Technique] = [
        Fake("fold", Stage.REWRITE, expected_speedup=1.1, function="batch_norm"),
        Fake("pad", Stage.REWRITE, expected_speedup=1.02, options=grid(multiple=(8, 16)), function="conv2d", rank=1),
        Fake("channels_last", Stage.LAYOUT, expected_speedup=1.2, function="conv2d"),
        Fake("bf16", Stage.PRECISION, expected_speedup=1.3, exact=False),
        Fake("int8", Stage.PRECISION, expected_speedup=1.6, cost_s=15, exact=False, needs=frozenset({"engine:vino"})),
        engine("script", expected_speedup=1.3, cost_s=3, options=grid(freeze=BOTH, optimize=BOTH)),
        engine("compile", expected_speedup=1.6, cost_s=30, options=grid(mode=("default", "max"), freezing=BOTH)),
        engine("onnx", expected_speedup=2.0, cost_s=4, packages=()),
        engine("vino", expected_speedup=2.4, cost_s=4, options=({}, {"hint": "latency"})),
        Fake("threads", Stage.RUNTIME, expected_speedup=1.0, options=({"count": 1}, {"count": 2})),
        Fake("allocator", Stage.RUNTIME, expected_speedup=1.03, cost_s=4),
        grad_mode("no_grad"),
        grad_mode("inference_mode"),
        engine("absent", packages=(Package("no-such-distribution", "absent"),)),
        engine("cuda_only", devices=frozenset({"cuda"})),
        Fake("int4", Stage.PRECISION, exact=False, needs=frozenset({"engine:absent"})),
    ]  # fmt: skip
    return {t.id: t for t in found}


class Landscape:
    """How every recipe ends on one synthetic subject and machine, drawn from ``seed``; the same on every call."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.broken = {e for e in ("script", "compile", "onnx", "vino") if self._draw("broken", e, high=1.0) < 0.12}

    def trial(self, recipe: Recipe) -> Trial:
        cost = 2.0 + sum(self._cost(c.technique, c.label) for c in recipe.choices)
        engine = next((c.technique for c in recipe.at(Stage.ENGINE)), "eager")
        if engine in self.broken:
            reason = f"{engine} cannot convert it"
            return Trial(recipe=recipe, outcome=Outcome.FAILED, stage=engine, reason=reason, cost_s=cost)
        if recipe.find("channels_last") and engine == "script" and self.seed % 3 == 0:
            return Trial(recipe=recipe, outcome=Outcome.WRONG, stage="verify", reason="off by 3e-1", cost_s=cost)
        log_latency = self._log_latency(recipe, engine)
        measured = -log_latency + self._normal(0.006, "noise", recipe.id)
        speedup = math.exp(measured if recipe.techniques != {"no_grad"} else 0.0)
        return measured_trial(recipe, speedup, cost_s=cost + 1.5 / speedup)

    def _log_latency(self, recipe: Recipe, engine: str) -> float:
        own = {"script": 0.25, "compile": 0.45, "onnx": 0.7, "vino": 0.85, "int8": 0.5, "bf16": 0.2}
        own |= {"channels_last": 0.15, "fold": 0.1, "allocator": 0.03, "inference_mode": 0.015}
        total = 0.0 if recipe.choices else 0.2
        for choice in recipe.choices:
            spread = 0.35 if choice.stage is Stage.ENGINE else 0.15 if choice.technique not in QUIET else 0.01
            total -= own.get(choice.technique, 0.0) + self._normal(spread, choice.technique)
            total -= self._normal(spread / 3, choice.label) if choice.options else 0.0
            if choice.stage is not Stage.ENGINE:
                total -= self._normal(spread / 2, choice.technique, engine)
                if engine != "eager" and choice.technique in ("fold", "pad"):
                    total += own.get(choice.technique, 0.0)
        return total

    def _cost(self, technique: str, label: str) -> float:
        expected = {"compile": 30.0, "int8": 15.0, "script": 3.0, "onnx": 4.0, "vino": 4.0, "allocator": 4.0}
        return expected.get(technique, 0.1) * math.exp(self._normal(0.4, "cost", label))

    def _normal(self, deviation: float, *what: str) -> float:
        return random.Random(f"{self.seed} {what}").gauss(0.0, deviation)

    def _draw(self, *what: str, high: float) -> float:
        return random.Random(f"{self.seed} {what}").uniform(0, high)


QUIET = {"no_grad", "inference_mode", "allocator"}


def measured_trial(
    recipe: Recipe,
    speedup: float,
    *,
    cost_s: float = 2.0,
    faithful: bool = True,
    rmse: float = 1e-6,
    total_bytes: int | None = 1000,
    width: float = 0.02,
) -> Trial:
    interval = Interval(median=speedup, low=speedup * (1 - width), high=speedup * (1 + width))
    latency = Interval(median=50 / speedup, low=49 / speedup, high=51 / speedup)
    return Trial(
        recipe=recipe,
        outcome=Outcome.OK,
        timing=Timing(latency_ms=latency, speedup_x=interval),
        error=ErrorReport(faithful=faithful, units=1.0, rmse=rmse, max_abs=rmse * 4),
        footprint=None if total_bytes is None else Footprint(idle_bytes=0, peak_bytes=total_bytes),
        cost_s=cost_s,
    )
