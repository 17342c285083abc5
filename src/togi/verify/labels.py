"""Labels of validation data as numbers of classes, and whether the original's hits tell it from a destroyed model.

Labels that nothing could hit count for both models as wrong, and so would prove any candidate. Hence what cannot be a
class is refused, and so are labels that the original hits no more often than chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import SubjectError
from togi.decide.paired import CONFIDENCE, binomial

IGNORED = -100
"""What torch's losses leave out. Of several classes every label below 0 is."""


def classes_of(answer: Tensor) -> int:
    """Of a single score: no and yes."""
    return max(answer.shape[-1], 2)


def decision_labels(given: Any, answer: Tensor, number: int) -> Tensor:
    """The labels of validation sample ``number``: one for each decision of ``answer``, below 0 where none counts.

    Raises SubjectError where there are not so many, or one of them is not a class.
    """
    labels, shape = torch.as_tensor(given), answer.shape[:2]
    labels = labels.long() if labels.dtype is torch.bool else labels
    if labels.numel() != shape.numel():
        raise SubjectError(
            f"validation sample {number} has {labels.numel()} labels, and the original decides {shape.numel()} times "
            f"there ({shape[0]} rows of {shape[1]}): give one label for each decision, {IGNORED} for those that do not "
            "count"
        )
    wrong = (labels >= classes_of(answer)) | (labels != labels.round())
    if answer.shape[-1] == 1:
        wrong |= (labels < 0) & (labels != IGNORED)
    if bool(wrong.any()):
        raise SubjectError(
            f"validation sample {number} has the label {labels[wrong].flatten()[0].item():g}, which no answer of the "
            f"original can hit, so it would prove nothing: {_allowed(answer)}"
        )
    return labels.reshape(shape).long()


def check_hits(decided: Sequence[Tensor], labels: Sequence[Tensor], classes: int) -> None:
    """Raises SubjectError where the original is right no more often than chance: then a destroyed model is, too. Not
    where labels are so few that nobody could do better beyond doubt: they prove little in any case, and say so."""
    guesses, right_ones = (torch.cat([one.flatten() for one in many]) for many in (decided, labels))
    hits, count = int((guesses == right_ones).sum()), len(right_ones)
    chance = _chance(guesses, right_ones, classes)

    def is_beyond_chance(hits: int) -> bool:
        return 1 - binomial(hits - 1, count, chance) <= 1 - CONFIDENCE

    if hits > chance * count and (is_beyond_chance(hits) or not is_beyond_chance(count)):
        return
    raise SubjectError(
        f"the original hits {hits:,} of {count:,} labels, and in another order it would hit {chance * count:,.0f}, so "
        "a destroyed model would lose nothing. Number the labels as the model numbers its classes, give more samples, "
        "or give --min-agreement, which needs no labels"
    )


def _chance(decided: Tensor, labels: Tensor, classes: int) -> float:
    """The share that hits if the labels are shuffled. Of a single kind, whose order says nothing: that of a guess."""
    of_labels, of_decided = (torch.bincount(one, minlength=classes).double() for one in (labels, decided))
    if int((of_labels > 0).sum()) == 1:
        return 1 / classes
    return float((of_labels * of_decided).sum() / len(labels) ** 2)


def _allowed(answer: Tensor) -> str:
    if answer.shape[-1] == 1:
        return f"of a single score labels are 0 and 1, and {IGNORED} does not count"
    return f"of {answer.shape[-1]} scores labels are 0 to {answer.shape[-1] - 1}, and those below 0 do not count"
