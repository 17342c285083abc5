"""The user's own metric on validation data: what it says of a recipe, and what it cannot judge by."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.core.choices import AccuracyMeasure, Direction
from togi.core.errors import SubjectError, TogiError
from togi.core.judging import Judging
from togi.core.records import Accuracy, ErrorReport, Outcome
from togi.decide.faithful import accept
from togi.decide.metric import MetricFacts
from togi.subject.validation import Validation
from togi.verify.accuracy import judged
from togi.verify.own_metric import FILE, CannotScore, OwnMetric, TakesLonger, soon_done

CLASSES, COUNT = 8, 200
Metric = Callable[..., float]


class Scores(nn.Module):
    """A classifier that is right about the largest of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(CLASSES, CLASSES, bias=False)
        nn.init.eye_(self.linear.weight)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.linear(x), "class": self.linear(x).argmax(-1)}


def data(**given: Any) -> Validation:
    labels = torch.randint(0, CLASSES, (COUNT,), generator=torch.Generator().manual_seed(1)).tolist()
    samples = [torch.eye(CLASSES)[label][None] for label in labels]
    for i, sample in enumerate(samples):  # no two are alike
        sample[0, labels[i] - 1] = i / (4 * COUNT)
    return Validation(**{"samples": samples, "labels": labels, **given})


def hits(outputs: list[Any], labels: list[int]) -> float:
    """It sees whole outputs, integers too."""
    return sum(int(output["class"]) == label for output, label in zip(outputs, labels, strict=True)) / len(labels)


def misses(outputs: list[Any], labels: list[int]) -> float:
    return 1 - hits(outputs, labels)


def own(metric: Metric, **given: Any) -> OwnMetric:
    return OwnMetric(metric, data(**given), seed=0, device="cpu")


def facts_of(metric: Metric, tmp_path: Path, declared: Direction | None = None, **given: Any) -> MetricFacts:
    return own(metric, **given).score_original(Scores(), tmp_path, declared)


def measured(
    metric: Metric,
    call: Callable[..., Any],
    tmp_path: Path,
    *,
    max_drop: float = 1.0,
    confirmation: bool = True,
    **given: Any,
) -> Accuracy:
    """On all of one half: what confirms does not end early where it is within."""
    asked = own(metric, **given)
    facts = asked.score_original(Scores(), tmp_path, None)
    assert not facts.problem
    known = asked.known_scores(tmp_path, "m.py:score", None)
    judging = Judging(measure=AccuracyMeasure.OWN, max_drop=max_drop)
    return judged(call, asked.validation, known, judging, confirmation=confirmation, seed=0, device="cpu")


def wrong_once_in(number: int) -> Callable[[Tensor], Any]:
    calls, model = itertools.count(), Scores()
    return lambda x: model(-x if next(calls) % number == 0 else x)


@pytest.mark.parametrize(("metric", "better"), [(hits, Direction.HIGHER), (misses, Direction.LOWER)])
def test_the_direction_is_found_by_damage_and_what_is_worse_is_a_drop(
    metric: Metric, better: Direction, tmp_path: Path
) -> None:
    assert facts_of(metric, tmp_path).better is better
    accuracy = measured(metric, wrong_once_in(10), tmp_path)
    assert accuracy.drop.mean == pytest.approx(0.1)
    assert (accuracy.drop.losses, accuracy.drop.gains, accuracy.drop.seen) == (10, 0, COUNT // 2)
    assert accuracy.metric is not None
    assert abs(accuracy.metric.original - accuracy.metric.candidate) == pytest.approx(0.1)
    assert accuracy.metric.better is better
    assert measured(metric, Scores(), tmp_path).drop.mean == 0


def test_it_is_soon_seen_whether_all_are_soon_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them may compile something: it does not tell that alone."""
    now = itertools.accumulate([0.0, 11.0, *[1.0] * 200])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    met = soon_done(range(100), 500.0)
    assert [next(met), next(met)] == [0, 1]
    with pytest.raises(TakesLonger):
        next(met)
    assert list(soon_done(range(100), 500.0)) == list(range(100))


def test_a_recipe_that_is_surely_outside_is_stopped_early(tmp_path: Path) -> None:
    drop = measured(hits, wrong_once_in(1), tmp_path, max_drop=0.02).drop
    assert drop.low > 0.02
    assert drop.seen < drop.planned


def test_a_group_is_asked_for_at_once_and_counts_as_one(tmp_path: Path) -> None:
    asked: list[int] = []

    def counted(outputs: list[Any], labels: list[int]) -> float:
        asked.append(len(outputs))
        return hits(outputs, labels)

    drop = measured(counted, wrong_once_in(10), tmp_path, groups=[i // 5 for i in range(COUNT)]).drop
    assert set(asked) == {5}
    assert drop.seen == drop.planned == COUNT // 10
    assert drop.mean == pytest.approx(0.1)


def test_copies_prove_nothing_more_and_count_as_often_as_they_are_met(tmp_path: Path) -> None:
    few, labels = data().samples[:20], data().labels
    assert labels is not None
    copies: dict[str, Any] = {"samples": few * 10, "labels": list(labels[:20]) * 10}
    drop = measured(hits, Scores(), tmp_path, **copies).drop
    assert (drop.seen, drop.losses, drop.complete) == (10, 0, True)
    model = Scores()
    often: dict[str, Any] = {"samples": few[:1] * 90 + few[1:], "labels": [labels[0]] * 90 + list(labels[1:20])}
    halves_of = [
        measured(hits, lambda x: model(-x if torch.equal(x, few[0]) else x), tmp_path, confirmation=half, **often).drop
        for half in (False, True)
    ]
    assert max(drop.mean for drop in halves_of) > 0.8


def test_without_labels_it_is_given_outputs_alone(tmp_path: Path) -> None:
    def sure(outputs: list[Any]) -> float:
        return float(outputs[0]["scores"].softmax(-1).amax())

    assert measured(sure, wrong_once_in(4), tmp_path, labels=None).drop.losses is None


def test_a_score_that_is_graded_only_for_a_candidate_errs_on_one_side(tmp_path: Path) -> None:
    """The original and damaged models get 0 or 1, so that a candidate's half a hit counts as a whole loss."""

    def rarely_graded(outputs: list[Any], labels: list[int]) -> float:
        return 0.5 if "half" in outputs[0] else hits(outputs, labels)

    right = Scores()
    drop = measured(rarely_graded, lambda x: {**right(x), "half": True}, tmp_path).drop
    assert (drop.losses, drop.mean) == (COUNT // 2, 1.0)


def test_a_graded_score_of_a_perfect_original_is_averaged(tmp_path: Path) -> None:
    def graded(outputs: list[Any], labels: list[int]) -> float:
        return max(0.0, min(1.0, float(outputs[0]["scores"][0, labels[0]])))

    half = Scores()
    drop = measured(graded, lambda x: half(x / 2), tmp_path).drop
    assert (drop.losses, drop.mean) == (None, pytest.approx(0.5))


def raises(*_: Any) -> float:
    raise KeyError("boxes")


def once_in_a_while(outputs: list[Any], labels: list[int]) -> float:
    return hits(outputs, labels) / (labels[0] - 5)


def changes_outputs(outputs: list[Any], _labels: list[int]) -> float:
    value = float(outputs[0]["scores"].sum())
    outputs[0]["scores"] += 1
    return value


REFUSED: dict[str, tuple[Metric, Direction | None, str]] = {
    "raises": (raises, None, r"it raises .*KeyError.*on the original's outputs for validation sample 1"),
    "raises once": (once_in_a_while, None, r"ZeroDivisionError.*on the original's outputs for validation sample"),
    "takes no labels": (lambda _outputs: 1.0, None, r"it raises .*TypeError"),
    "NaN": (lambda *_: float("nan"), None, "it is nan on the original's outputs"),
    "random": (lambda *_: random.random(), None, "it draws random numbers"),
    "changes outputs": (changes_outputs, None, "changes the outputs in place"),
    "constant": (lambda *_: 0.5, None, "whether or not the model's weights are destroyed"),
    "upside down": (misses, Direction.HIGHER, "it improves with damage"),
    "a percentage": (lambda outputs, labels: 100 * hits(outputs, labels), None, r"a percentage by 100"),
    "no number": (lambda *_: [], None, r"it raises .*TypeError"),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize(("metric", "declared", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_judge_is_told_and_nothing_is_kept(
    metric: Metric, declared: Direction | None, said: str, tmp_path: Path
) -> None:
    facts = facts_of(metric, tmp_path, declared)
    assert re.search(said, facts.problem), facts.problem
    assert not (tmp_path / FILE).exists()
    with pytest.raises(TogiError, match="made anew"):
        own(metric).known_scores(tmp_path, "", declared)


def test_what_it_says_of_other_data_is_not_taken_for_that_of_these(tmp_path: Path) -> None:
    """By labels in another order the original would be right about few, and any recipe would gain."""
    labels = data().labels
    assert labels is not None
    assert not facts_of(hits, tmp_path).problem
    own(hits).known_scores(tmp_path, "", None)
    with pytest.raises(SubjectError, match="Give it a seed, and sort what has no order"):
        own(hits, labels=[*labels[1:], labels[0]]).known_scores(tmp_path, "", None)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ({}, r"it raises .*KeyError.*on its outputs for validation sample"),
        ({"class": torch.tensor([0, 1])}, r"it raises .* on its outputs for validation sample"),
        ({"class": float("nan")}, "on its outputs"),
    ],
)
def test_outputs_that_it_cannot_take_end_the_recipe_and_not_the_study(output: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(CannotScore, match=said) as caught:
        measured(hits, lambda _: output, tmp_path)
    report = ErrorReport(faithful=False, units=99.0, rmse=0.1, max_abs=0.1, metric_problem=str(caught.value))
    outcome, reason = accept(report, exact=False, judging=Judging(measure=AccuracyMeasure.OWN, max_drop=1.0))
    assert outcome is Outcome.WRONG
    assert reason.startswith("the metric cannot judge it: it raises")


def test_a_recipe_that_falls_by_more_than_one_is_not_averaged_away(tmp_path: Path) -> None:
    def capped(outputs: list[Any], labels: list[int]) -> float:
        return float(outputs[0]["scores"][0, labels[0]].clamp(-5, 1))

    bad = Scores()
    with pytest.raises(CannotScore, match=r"from 1 to -5 .*differ by 1 at most"):
        measured(capped, lambda x: bad(-9 * x), tmp_path)
