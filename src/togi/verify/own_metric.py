"""The user's own metric on validation data: a function of outputs, and of labels where there are any.

It is asked for the samples of one group at a time (a sample by itself where there are no groups), and what counts is
the mean. So each group has a difference, and their mean an interval, which no single number for all data would have.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from togi.core.choices import AccuracyMeasure, Direction
from togi.core.errors import TogiError
from togi.core.records import Accuracy, Drop, OwnMetricReport, Record
from togi.decide.metric import MetricFacts, drop, judged
from togi.decide.paired import flips, scores
from togi.subject.behaviour import seed_all
from togi.subject.inputs import Inputs
from togi.subject.validation import Validation, check_same_data, kept_together
from togi.verify.leaves import fresh
from togi.verify.metric import damaged_copies, identity_of, said_again, value_of

Item = TypeVar("Item")

FILE = "scores.json"
_DAMAGED_ON = 32
"""Groups on which damaged models are asked: enough to tell which way a metric goes."""
_NAMELESS = "metric"


class CannotScore(Exception):
    """The metric has no number for a candidate's outputs. The message follows the words "it cannot judge"."""


class _KeptScores(Record):
    """What it says of the original, in a file of the run."""

    data: str
    """The identity of the validation data."""
    scores: tuple[float, ...]
    """In the order of ``groups_of``."""
    better: Direction
    right_or_wrong: bool
    """All of these, and of what damaged models got, are 0 or 1."""


def answered(call: Callable[..., Any], sample: Inputs, seed: int) -> Any:
    """What a call with a copy of ``sample`` returns, as it is."""
    given = fresh(sample)
    seed_all(seed)
    with torch.no_grad():
        return call(*given.args, **given.kwargs)


class TakesLonger(Exception):
    """As the first answers show, all of them would take longer than there is time."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: that all would take."""
        super().__init__(f"it would take {seconds:.0f} s")
        self.seconds = seconds


def soon_done(items: Sequence[Item], within_s: float) -> Iterator[Item]:
    """Each in its turn. Raises TakesLonger once all will take longer than ``within_s``; the first, which may compile
    something, does not tell that alone."""
    began = time.monotonic()
    for done, item in enumerate(items):
        if done > 1 and (whole_s := (time.monotonic() - began) * len(items) / done) > within_s:
            raise TakesLonger(whole_s)
        yield item


def groups_of(validation: Validation) -> dict[Hashable, list[int]]:
    """The samples of each group, in the order in which groups appear."""
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(validation.group_of):
        members.setdefault(group, []).append(index)
    return members


@dataclass(frozen=True)
class OwnMetric:
    """The metric with the data that it is asked about."""

    metric: Callable[..., float]
    validation: Validation
    seed: int
    device: str

    def score_original(
        self, module: nn.Module, folder: Path, declared: Direction | None, within_s: float = math.inf
    ) -> MetricFacts:
        """Write down what it says of the original, in the run's ``folder``, if it can judge; else what keeps it from
        that. Raises whatever the module raises, and TakesLonger than ``within_s``."""
        groups = list(groups_of(self.validation).values())
        found: list[float] = []
        for indices in soon_done(groups, within_s):
            value, problem = self._asked_twice(indices, self._outputs(module, indices))
            if value is None:
                return MetricFacts(problem=f"{problem} on the original's outputs for {_named(indices)}")
            found.append(value)
        few = sorted(random.Random(self.seed).sample(range(len(groups)), min(len(groups), _DAMAGED_ON)))
        damaged = [scored for copy in damaged_copies(module) if (scored := self._scored(copy, groups, few)) is not None]
        few_found = [found[number] for number in few]
        facts = judged(_mean(few_found), [_mean(values) for values in damaged], declared)
        facts = facts.model_copy(update={"value": _mean(found)})
        if not facts.problem and (problem := _too_wide(few_found, damaged)):
            return facts.model_copy(update={"problem": problem})
        if not facts.problem and facts.better is not None:
            sharp = {0.0, 1.0}.issuperset(chain(found, *damaged))
            data = self.validation.identity
            kept = _KeptScores(data=data, scores=tuple(found), better=facts.better, right_or_wrong=sharp)
            (folder / FILE).write_text(kept.to_json(), encoding="utf-8")
        return facts

    def known_scores(self, folder: Path, name: str, declared: Any) -> KnownScores:
        """What was written down. Raises TogiError where that cannot be read, and SubjectError where it is of other
        data."""
        try:
            kept = _KeptScores.from_json((folder / FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise TogiError(
                f"what the metric says of the original cannot be read in {folder}. Run the command again: it is made "
                "anew"
            ) from None
        check_same_data(kept.data, self.validation)
        of_group = dict(zip(groups_of(self.validation), kept.scores, strict=True))
        code = identity_of(self.metric, declared)
        return KnownScores(self, of_group, kept.better, kept.right_or_wrong, name or _NAMELESS, code)

    def of(self, indices: Sequence[int], outputs: Sequence[Any]) -> tuple[float | None, str]:
        """What it says of the outputs for these samples; else what is wrong with it, in words."""
        labels = self.validation.labels
        if labels is None:
            return value_of(self.metric, outputs)
        of_these = [labels[i] for i in indices]
        return value_of(lambda given: self.metric(given, of_these), outputs)

    def _asked_twice(self, indices: Sequence[int], outputs: Sequence[Any]) -> tuple[float | None, str]:
        value, problem = self.of(indices, outputs)
        if value is None:
            return None, problem
        again, _ = self.of(indices, outputs)
        return (value, "") if again == value else (None, said_again(value, again))

    def _outputs(self, call: Callable[..., Any], indices: Sequence[int]) -> list[Any]:
        return [answered(call, self._inputs[i].to(self.device), self.seed) for i in indices]

    @functools.cached_property
    def _inputs(self) -> tuple[Inputs, ...]:
        return self.validation.inputs

    def _scored(self, damaged: nn.Module, groups: Sequence[list[int]], few: Sequence[int]) -> list[float] | None:
        """What it says of a damaged model; None where that cannot run, or answers with what it cannot take."""
        found: list[float] = []
        for number in few:
            try:
                outputs = self._outputs(damaged, groups[number])
            except Exception:  # foreign code: what a model does with such weights
                return None
            value, _ = self.of(groups[number], outputs)
            if value is None:
                return None
            found.append(value)
        return found


@dataclass(frozen=True)
class KnownScores:
    """What the metric says of the original, group by group."""

    own: OwnMetric
    of_group: Mapping[Hashable, float]
    better: Direction
    right_or_wrong: bool
    """As far as was seen of the original and of damaged models. What a candidate gets is not asked: the kind of
    interval may not depend on what it bounds."""
    name: str
    code: str


class SeenGroups:
    """The groups of one half of the data that a candidate has answered so far."""

    def __init__(self, known: KnownScores, indices: Sequence[int], chose: Sequence[int] = ()) -> None:
        """``indices``: of all samples that are to be seen, one group after the other; ``chose``: of those that chose
        what these confirm. Copies count and do not count, as of other measures."""
        self._known = known
        self._group_of, known_by = known.own.validation.group_of, kept_together(known.own.validation)
        met, self._new = {known_by[i] for i in chose}, dict[Hashable, bool]()
        for i in indices:
            self._new.setdefault(self._group_of[i], known_by[i] not in met)
            met.add(known_by[i])
        self._planned = len(self._new)
        self._left = {group: len(members) for group, members in groups_of(known.own.validation).items()}
        self._outputs: dict[int, Any] = {}
        self._pairs: dict[Hashable, tuple[float, float]] = {}

    def add(self, i: int, call: Callable[..., Any], sample: Inputs, seed: int) -> None:
        """Raises CannotScore where the metric has no number for a group, and whatever ``call`` raises."""
        group = self._group_of[i]
        self._outputs[i] = answered(call, sample, seed)
        self._left[group] -= 1
        if self._left[group] == 0:
            outputs, self._outputs = self._outputs, {}
            self._pairs[group] = self._known.of_group[group], self._score(outputs, self._known.of_group[group])

    def _score(self, outputs: Mapping[int, Any], original: float) -> float:
        value, problem = self._known.own.of(list(outputs), list(outputs.values()))
        if value is None:
            raise CannotScore(f"{problem} on its outputs for {_named(list(outputs))}")
        if abs(drop(original, value, self._known.better)) > 1:
            raise CannotScore(
                f"it goes from {original:.4g} to {value:.4g} for {_named(list(outputs))}, and an interval needs scores "
                "that differ by 1 at most: return a share of the worst"
            )
        return value

    def drop(self) -> Drop:
        worse = {group: drop(*pair, self._known.better) for group, pair in self._pairs.items()}
        new = [difference for group, difference in worse.items() if self._new[group]]
        drops = [self._drop_of([*worse.values()], self._planned), self._drop_of(new, sum(self._new.values()))]
        return max(drops, key=lambda each: each.high)

    def _drop_of(self, worse: Sequence[float], planned: int) -> Drop:
        if not self._known.right_or_wrong:
            return scores(worse, planned)
        # a group that is worse in part counts as lost, and one that is better in part as no gain: that errs on one side
        losses, gains = sum(difference > 0 for difference in worse), sum(difference <= -1 for difference in worse)
        return flips(losses, len(worse), planned, gains=gains)

    def accuracy(self, *, confirmation: bool) -> Accuracy:
        known = self._known
        report = OwnMetricReport(
            name=known.name,
            code=known.code,
            original=_mean([original for original, _ in self._pairs.values()]),
            candidate=_mean([candidate for _, candidate in self._pairs.values()]),
            better=known.better,
        )
        data = known.own.validation.identity
        measure = AccuracyMeasure.OWN
        return Accuracy(measure=measure, confirmation=confirmation, drop=self.drop(), data=data, metric=report)


def _too_wide(original: Sequence[float], damaged: Sequence[Sequence[float]]) -> str:
    """What is wrong with a metric whose values of a group differ by more than 1; empty if none do."""
    pairs = [pair for values in damaged for pair in zip(original, values, strict=True)]
    widest = max(pairs, key=lambda pair: abs(pair[0] - pair[1]), default=(0.0, 0.0))
    if abs(widest[0] - widest[1]) <= 1:
        return ""
    return (
        f"it goes from {widest[0]:.4g} to {widest[1]:.4g} for the same samples when the model's weights are destroyed,"
        " and an interval needs scores that differ by 1 at most. Divide by the largest difference (a percentage by 100)"
        ", or cut it off there, and state --max-drop in that unit"
    )


def _named(indices: Sequence[int]) -> str:
    """``validation sample 3``, or of a group ``validation samples 3, 4 and 2 more``."""
    numbers = [str(i + 1) for i in indices]
    if len(numbers) == 1:
        return f"validation sample {numbers[0]}"
    more = f" and {len(numbers) - 2} more" if len(numbers) > 2 else ""
    return f"validation samples {', '.join(numbers[:2])}{more}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
