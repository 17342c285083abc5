"""The user's metric: what it says of outputs, which of its values are better, and what keeps it from judging anything.

Which are better is declared (``Subject(better=...)``), or found by damaging the model on purpose: a metric that tells
right from wrong gets worse. Without that an error rate would accept a model that is always wrong, as a gain.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.choices import Direction
from togi.core.user_code import user_place
from togi.decide.metric import MetricFacts, judged

Metric = Callable[[list[Any]], float]

_DAMAGES = 5
"""So many damaged models: the even ones have the values of each weight shuffled, the odd ones noise as large as the
weights."""


def value_of(metric: Metric, outputs: Sequence[Any]) -> tuple[float | None, str]:
    """What the metric says; else what is wrong with it, in words."""
    try:
        value = float(metric(list(outputs)))
    except Exception as error:  # foreign code: the user's
        return None, f"it raises ({user_place(error)})"
    return (value, "") if math.isfinite(value) else (None, f"it is {value:g}")


@dataclass(frozen=True)
class AskedMetric:
    """What is asked of the user's metric."""

    metric: Metric
    better: Direction | None
    """Which of its values are better, where that was declared."""
    damage: bool
    """Approximate candidates are judged by it, so it has to show that it can judge."""

    def of(self, module: nn.Module, outputs: Sequence[Any], run: Callable[[nn.Module], Sequence[Any]]) -> MetricFacts:
        """What it says of the original.

        Args:
            outputs: of a pass of ``module`` over the samples.
            run: makes such a pass of another module. Raises whatever that raises.
        """
        value, problem = value_of(self.metric, outputs)
        if value is None:
            return MetricFacts(problem=f"{problem} on the outputs of the original")
        again, _ = value_of(self.metric, outputs)
        if again != value:
            return MetricFacts(problem=said_again(value, again))
        if not self.damage:
            return MetricFacts(value=value, better=self.better)
        return judged(value, tuple(self._of_damaged(module, run)), self.better)

    def _of_damaged(self, module: nn.Module, run: Callable[[nn.Module], Sequence[Any]]) -> Iterator[float]:
        """What it says of damaged models. Left out are those that cannot run, or answer with what it cannot take."""
        for damaged in damaged_copies(module):
            try:
                outputs = run(damaged)
            except Exception:  # foreign code: what a module does with such weights
                continue
            value = value_of(self.metric, outputs)[0]
            if value is not None:
                yield value


def identity_of(metric: Metric | None, better: object) -> str:
    """Changes with the metric's own code and its declared direction: a study does not go on with what another judged.
    What it calls, and what it reads, is not looked at."""
    called = metric if isinstance(metric, FunctionType) else vars(type(metric)).get("__call__")
    code = getattr(called, "__code__", None)
    text = _text_of(code) if isinstance(code, CodeType) else type(metric).__qualname__
    return hashlib.sha256(f"{text} {better}".encode()).hexdigest()


def _text_of(code: CodeType) -> str:
    constants = [_text_of(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def said_again(value: float, again: float | None) -> str:
    """What is wrong with a metric that says something else (None: nothing) of the same outputs."""
    said = "nothing" if again is None else f"{again:.6g}"
    return (
        f"it returns {value:.6g}, then {said}, for the same outputs: it draws random numbers, or changes the outputs "
        "in place"
    )


def damaged_copies(module: nn.Module) -> Iterator[nn.Module]:
    """Models that were damaged on purpose. Left out are those that cannot be copied, or have no weights to damage."""
    for seed in range(_DAMAGES):
        try:
            damaged = damaged_copy(module, seed)
        except Exception:  # foreign code: how a module is copied
            continue
        if damaged is not None:
            yield damaged


def damaged_copy(module: nn.Module, seed: int) -> nn.Module | None:
    """A copy with weights that answer nothing: shuffled (an even ``seed``), or under noise as large as they are. None
    where it has no weights to damage. Raises whatever copying raises."""
    generator = torch.Generator().manual_seed(seed)
    damaged, count = copy.deepcopy(module), 0
    with torch.no_grad():
        for parameter in damaged.parameters():
            if parameter.is_floating_point() and parameter.element_size() > 1 and parameter.numel() > 1:
                parameter.copy_(_shuffled(parameter, generator) if seed % 2 == 0 else _noisy(parameter, generator))
                count += 1
    return damaged if count else None


def _shuffled(weight: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(weight.numel(), generator=generator).to(weight.device)
    return weight.detach().reshape(-1)[order].reshape(weight.shape)


def _noisy(weight: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(weight.shape, generator=generator).to(weight.device, weight.dtype)
    return weight.detach() + noise * weight.detach().square().mean().sqrt()
