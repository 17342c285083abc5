"""The user's metric: its direction is found by damage, and what cannot judge is told as what it is."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.verify.test_truth_of_original import truth_of
from togi.core.choices import Direction
from togi.core.records import ErrorReport
from togi.decide.metric import MetricFacts
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.verify.derived_inputs import variants
from togi.verify.metric import damaged_copy, identity_of, value_of
from togi.verify.verdict import verify


class Classifier(nn.Module):
    """Right about 8 classes: each input is nearest to its own row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.eye(8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.rows.T


LABELS = torch.arange(8).repeat(4)
SAMPLES = [torch.eye(8)[labels] + 0.1 for labels in LABELS.split(8)]


def accuracy(outputs: list[Tensor]) -> float:
    return float((torch.cat(outputs).argmax(1) == LABELS).float().mean())


def error_rate(outputs: list[Tensor]) -> float:
    return 1 - accuracy(outputs)


def loss(outputs: list[Tensor]) -> float:
    return float(nn.functional.cross_entropy(torch.cat(outputs), LABELS))


def found(metric: Callable[[list[Any]], Any], module: nn.Module | None = None, **options: Any) -> MetricFacts:
    torch.manual_seed(0)
    facts = truth_of(module or Classifier(), *SAMPLES, metric=metric, **{"damage": True, **options}).facts.metric
    assert facts is not None
    return facts


@pytest.mark.parametrize(
    ("metric", "value", "better"),
    [(accuracy, 1.0, Direction.HIGHER), (error_rate, 0.0, Direction.LOWER), (loss, None, Direction.LOWER)],
)
def test_the_direction_is_found_by_damage(
    metric: Callable[[list[Tensor]], float], value: float | None, better: Direction
) -> None:
    facts = found(metric)
    assert facts.problem == ""
    assert facts.better is better
    assert value is None or facts.value == value


def test_damage_destroys_a_copy_and_not_the_model() -> None:
    module = Classifier()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for seed in range(4):
        damaged = damaged_copy(module, seed)
        assert damaged is not None
        assert not torch.equal(damaged.rows, module.rows)  # type: ignore[arg-type]
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert damaged_copy(nn.ReLU(), 0) is None


numbers = itertools.count()


def raises(outputs: list[Any]) -> float:
    return 1 / (len(outputs) - len(SAMPLES))


def changes_outputs(outputs: list[Tensor]) -> float:
    return float(outputs[0].add_(1).sum())


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        (raises, r"it raises \(.*ZeroDivisionError.*on the outputs of the original"),
        (lambda _: "good", "it raises"),
        (lambda _: None, "it raises"),
        (lambda _: math.nan, "it is nan on the outputs of the original"),
        (lambda _: math.inf, "it is inf"),
        (lambda _: next(numbers), "for the same outputs: it draws random numbers"),
        (changes_outputs, "or changes the outputs in place"),
        (lambda _: 0.5, "it is 0.5 whether or not the model's weights are destroyed"),
    ],
)
def test_what_cannot_judge_is_told_as_what_it_is(metric: Callable[[list[Any]], Any], problem: str) -> None:
    assert re.search(problem, found(metric).problem)


def test_a_declared_direction_that_damage_contradicts_is_told() -> None:
    assert "improves with damage" in found(error_rate, better=Direction.HIGHER).problem
    assert found(accuracy, better=Direction.HIGHER).problem == ""


class Uncopied(Classifier):
    def __deepcopy__(self, memo: object) -> Uncopied:
        raise TypeError("a lock")


def test_a_model_that_cannot_be_damaged_needs_a_declaration() -> None:
    assert "could not be damaged" in found(accuracy, Uncopied()).problem
    declared = found(accuracy, Uncopied(), better=Direction.HIGHER)
    assert (declared.better, declared.problem) == (Direction.HIGHER, "")


def test_where_nothing_is_judged_the_model_is_not_damaged() -> None:
    assert found(error_rate, damage=False) == MetricFacts(value=0.0)


def report(metric: Callable[[list[Any]], float], asked_of_original: Callable[[list[Any]], float]) -> ErrorReport:
    """Of the model itself as a candidate."""
    module, samples = Classifier(), [Inputs.of(sample) for sample in SAMPLES]
    with torch.no_grad():
        signature = Signature.of(module, samples, [module(sample) for sample in SAMPLES])
    truth = truth_of(module, *SAMPLES, metric=asked_of_original, damage=True)
    return verify(module, truth, variants(samples, signature, 0), signature, seed=0, metric=metric)


def test_the_report_on_a_candidate_has_the_direction_and_what_went_wrong() -> None:
    right = report(error_rate, error_rate)
    assert (right.metric, right.metric_original, right.better) == (0.0, 0.0, Direction.LOWER)
    raised = report(raises, error_rate)
    assert (raised.metric, raised.metric_original) == (None, 0.0)
    assert "ZeroDivisionError" in raised.metric_problem
    assert raised.faithful, "what the metric says decides of approximate candidates alone"


def test_a_metric_that_judges_nothing_is_not_asked_again() -> None:
    unasked = report(error_rate, raises)
    assert (unasked.metric, unasked.metric_original, unasked.metric_problem) == (None, None, "")


def test_a_value_that_is_not_finite_is_none() -> None:
    assert value_of(lambda _: math.inf, []) == (None, "it is inf")
    assert value_of(lambda outputs: len(outputs), [1, 2]) == (2.0, "")


def test_a_study_does_not_go_on_with_what_another_metric_judged() -> None:
    def other(outputs: list[Tensor]) -> float:
        return 1 - error_rate(outputs) / 2

    class Callable_:
        def __call__(self, outputs: list[Tensor]) -> float:
            return 0.0

    known = [identity_of(metric, None) for metric in (accuracy, error_rate, other, Callable_(), None)]
    assert len(set(known)) == len(known)
    assert identity_of(accuracy, "lower") != identity_of(accuracy, None) == known[0]
