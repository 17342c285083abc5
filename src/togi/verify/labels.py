"""Labels of validation data as numbers of classes, and whether the original's hits tell it from a destroyed model.

Labels that nothing could hit count for both models as wrong, and so would prove any candidate. Hence what cannot be a
class is refused, and so are labels that the original hits no more often than chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import SubjectError
from togi.core.quantities import a_type, first_line
from togi.decide.paired import CONFIDENCE, binomial
from togi.verify.characters import BLANK, error_rate

IGNORED = -100
"""What torch's losses leave out. Of several classes every label below 0 is."""
_STANDARD_ERRORS = 2.0
"""So far from zero is a mean that chance does not explain."""


def classes_of(answer: Tensor) -> int:
    """Of a single score: no and yes."""
    return max(answer.shape[-1], 2)


def decision_labels(given: Any, answer: Tensor, number: int) -> Tensor:
    """The labels of validation sample ``number``: one for each decision of ``answer``, below 0 where none counts.

    Raises SubjectError where there are not so many, or one of them is not a class.
    """
    labels, shape = _numbers(given, number), answer.shape[:2]
    if labels.numel() != shape.numel():
        raise SubjectError(
            f"validation sample {number} has {labels.numel()} labels, and the original decides {shape.numel()} times "
            f"there ({shape[0]} rows of {shape[1]}): give one label for each decision, {IGNORED} for those that do not "
            "count"
        )
    wrong = (labels >= classes_of(answer)) | _no_whole_number(labels)
    if answer.shape[-1] == 1:
        wrong |= (labels < 0) & (labels != IGNORED)
    if bool(wrong.any()):
        raise SubjectError(
            f"validation sample {number} has the label {labels[wrong].flatten()[0].item():g}, which no answer of the "
            f"original can hit, so it would prove nothing: {_allowed(answer)}"
        )
    return labels.reshape(shape).long()


def ignored(given: Any, answer: Tensor) -> Tensor | None:
    """Which decisions of ``answer`` have a label that says they do not count. None where nothing is left out, or the
    labels are not one for each decision: what is judged without labels takes any."""
    try:
        labels = torch.as_tensor(given).cpu()
    except (TypeError, ValueError, RuntimeError):
        return None
    shape = answer.shape[:2]
    left_out = labels == IGNORED
    return left_out.reshape(shape) if labels.numel() == shape.numel() and bool(left_out.any()) else None


def text_labels(given: Any, answer: Tensor, number: int) -> list[list[int]]:
    """The labels of validation sample ``number`` as the texts of its rows, without blanks and what fills up shorter
    ones (labels below 0). ``answer``: ``(rows, steps, classes)``.

    Raises SubjectError where there is not one text for each row, or one of its characters is not a class.
    """
    labels, rows = _numbers(given, number), len(answer)
    length, left = divmod(labels.numel(), max(rows, 1))
    if left or (length and not rows):
        raise SubjectError(
            f"validation sample {number} has labels of the shape {tuple(labels.shape)} for {rows} rows: give one text "
            f"for each, and fill up shorter ones with {IGNORED}"
        )
    wrong = (labels >= answer.shape[-1]) | _no_whole_number(labels)
    if bool(wrong.any()):
        raise SubjectError(
            f"validation sample {number} has the label {labels[wrong].flatten()[0].item():g}, which no text of the "
            f"original can hold: of {answer.shape[-1]} scores, those of the blank first, characters are 1 to "
            f"{answer.shape[-1] - 1}"
        )
    texts = labels.reshape(rows, length).long().tolist()
    return [[kind for kind in text if kind > BLANK] for text in texts]


def _numbers(given: Any, number: int) -> Tensor:
    """On the CPU. Raises SubjectError for what holds no numbers."""
    try:
        labels = torch.as_tensor(given).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SubjectError(
            f"the labels of validation sample {number} are {a_type(given)}, which cannot be read as numbers "
            f"({first_line(error)}): give the numbers of classes, or judge by a metric of your own (--metric "
            "FILE:function)"
        ) from None
    return labels if labels.is_floating_point() else labels.long()


def _no_whole_number(labels: Tensor) -> Tensor:
    return (labels != labels.round()) | ~labels.isfinite()


def check_surprises(surprises: Tensor, classes: int) -> None:
    """Raises SubjectError where the original finds its labels no likelier than a guess does: then a destroyed model
    loses nothing. ``surprises``: less the logarithm of each label's probability."""
    guess = math.log(classes)
    most = 2 * guess  # what is ruled out has no probability at all, and does not decide
    surprise = float(surprises.nan_to_num(most).clamp_max(most).mean())
    if not surprise < guess:
        raise SubjectError(
            f"the original's perplexity is no better than that of a guess among {classes:,} classes, so a destroyed "
            "model would lose nothing. Number the labels as the model numbers its classes, and give to each decision "
            "its own label: of a text, the token that follows"
        )


def check_texts(texts: Sequence[Sequence[int]], right_ones: Sequence[Sequence[int]]) -> None:
    """Raises SubjectError where chance explains that the original's texts are nearer to their labels than to those of
    others: then a destroyed model loses nothing."""
    own = [error_rate(text, right) for text, right in zip(texts, right_ones, strict=True)]
    others = [error_rate(text, right) for text, right in zip(texts, [*right_ones[1:], right_ones[0]], strict=True)]
    nearer = [other - mine for mine, other in zip(own, others, strict=True)]
    error = statistics.pstdev(nearer) / math.sqrt(len(nearer))
    if any(own) and not statistics.fmean(nearer) > _STANDARD_ERRORS * error:
        raise SubjectError(
            f"the character error rate of the original is {statistics.fmean(own):.3g}, and with the labels of other "
            f"samples it is {statistics.fmean(others):.3g}, so a destroyed model would lose nothing. Number the "
            "characters as the model does, with 0 for its blank"
        )


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
