"""The measures of accuracy that are built in: by how much each row of an answer is worse than the original's.

0 is as good as the original, 1 as bad as a row can be; below 0 is better than the original, which only labels can show.
A row is what the first dimension counts, if it is that of the samples; else all that a sample is answered is one row.
The last dimension holds scores, all between are decisions of the row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from togi.core.choices import AccuracyMeasure, ScoreForm
from togi.core.errors import SubjectError
from togi.subject.inputs import Inputs
from togi.subject.leaves import is_array
from togi.subject.validation import Validation
from togi.verify.characters import error_rate, read
from togi.verify.labels import (
    check_hits,
    check_surprises,
    check_texts,
    classes_of,
    decision_labels,
    ignored,
    text_labels,
)
from togi.verify.scores import all_between_0_and_1, by_rows, form_of, known_rows, rows_of

_PICTURE = 4
"""Dimensions of a batch of pictures."""
_LEAST_PROBABILITY = 1e-12
_AS_NEAR = 1e-6
"""Neighbours whose cosines differ by less are as near: copies of one sample are."""
_NOTHING_COUNTS = {
    AccuracyMeasure.DECIDED: "the measure decided counts answers that the original gives with a probability above one "
    "half, and it gives none: judge by agreement, or by a metric of its own",
    AccuracyMeasure.ACCURACY: "the measure accuracy counts labels from 0 on, and there are none",
    AccuracyMeasure.PERPLEXITY: "the measure perplexity counts labels from 0 on, and there are none",
}
_LABELLED = frozenset({AccuracyMeasure.ACCURACY, AccuracyMeasure.PERPLEXITY})
_EMBEDDED = frozenset({AccuracyMeasure.RANK, AccuracyMeasure.NEAREST})
_AGREEING = frozenset({AccuracyMeasure.AGREEMENT, AccuracyMeasure.DECIDED, AccuracyMeasure.KL})
"""They need no labels. Where there are some, these say what does not count."""
_DECIDING = _AGREEING | _LABELLED
"""They read the scores of a decision from the last dimension."""


class RowMeasure:
    """One measure on the answers of one original."""

    def __init__(self, measure: AccuracyMeasure, validation: Validation, answers: Sequence[Tensor]) -> None:
        """Raises SubjectError where the measure needs labels and there are none, or what cannot be labels."""
        if measure in _LABELLED and validation.labels is None:
            raise SubjectError(
                f"the measure {measure} needs labels, and the validation data have none: return (samples, labels), or "
                "give --min-agreement, which needs none"
            )
        self.measure, self._labels, self._answers = measure, validation.labels, answers
        self._inputs = validation.inputs
        self._by_rows = by_rows(self._inputs, answers)
        self._check_shapes()
        self._rows = [rows_of(answer, self._by_rows) for answer in answers]
        self._left_out: list[Tensor | None] = self._unlabelled() if measure in _AGREEING else [None] * len(answers)
        self._classes = self._checked_labels() if measure in _LABELLED else []
        self._texts = self._right_texts() if measure is AccuracyMeasure.CHARACTERS else []
        self._form = form_of(self._rows)
        if measure is AccuracyMeasure.PERPLEXITY and self._form is ScoreForm.INDEPENDENT:
            raise SubjectError(
                "the measure perplexity needs logits, or probabilities that sum to 1, and the original's scores lie "
                "between 0 and 1 with other sums: have the model return its logits, or judge by kl"
            )
        embeds = measure in _EMBEDDED
        self._all = _directions(torch.cat([rows.flatten(1) for rows in self._rows])) if embeds else None
        self._between_0_and_1 = all_between_0_and_1([known_rows(rows) for rows in self._rows])
        self._first_row = [0, *itertools.accumulate(map(len, self._rows))]
        if not any(bool(self.counted(i).any()) for i in range(len(answers))):
            raise SubjectError(_NOTHING_COUNTS.get(measure, "the validation samples have no row that counts"))

    def check_original(self, *, chooses: bool = True) -> None:
        """Raises SubjectError where the measure does not tell the original from a model that ignores what it is given:
        one that guesses or, where the measure ``chooses``, one that always gives the same answer."""
        counted = [self._counts(i) for i in range(len(self._answers))]
        if self.measure is AccuracyMeasure.ACCURACY:
            decided = [self._decided(rows)[counts] for rows, counts in zip(self._rows, counted, strict=True)]
            labels = [labels[counts] for labels, counts in zip(self._classes, counted, strict=True)]
            check_hits(decided, labels, max(map(classes_of, self._rows)))
        elif self.measure is AccuracyMeasure.PERPLEXITY:
            surprises = [-self._of_labels(i, rows)[counted[i]] for i, rows in enumerate(self._rows)]
            check_surprises(torch.cat(surprises), max(map(classes_of, self._rows)))
        elif self.measure is AccuracyMeasure.CHARACTERS and self._labels is not None:
            texts = [read(row) for rows in self._rows for row in rows]
            check_texts(texts, [text for of_sample in self._texts for text in of_sample])
        elif chooses and self._are_alike():
            raise SubjectError(
                f"the original answers all validation samples alike, as far as the measure {self.measure} sees, so a "
                "model that always gives that answer would lose nothing: give samples of several kinds, or judge by "
                "another measure (rms where the numbers are not scores) or by a metric of your own"
            )

    def _are_alike(self) -> bool:
        """Whether a model that always gives the same answer would lose nothing: the first of the original's that
        counts."""
        i = next(i for i in range(len(self._rows)) if self.counted(i).any())
        row = self.counted(i).tolist().index(True)
        same = self._answers[i][row : row + 1] if self._by_rows else self._answers[i]
        for number, answer in enumerate(self._answers):
            given = same.expand(len(answer), *same.shape[1:]) if self._by_rows else same
            if bool((self.worse(number, given)[self.counted(number)] > _AS_NEAR).any()):
                return False
        return True

    @property
    def graded(self) -> bool:
        """A row may be worse in part."""
        if not self.measure.of_answers:
            return True
        return self.measure is not AccuracyMeasure.NEAREST and any(rows.shape[1] > 1 for rows in self._rows)

    @property
    def form(self) -> ScoreForm | None:
        """How the scores are read, where the measure depends on it."""
        match self.measure:
            case AccuracyMeasure.KL | AccuracyMeasure.PERPLEXITY | AccuracyMeasure.DECIDED:
                return self._form
            case AccuracyMeasure.AGREEMENT | AccuracyMeasure.ACCURACY:
                return self._form if any(rows.shape[-1] == 1 for rows in self._rows) else None
            case AccuracyMeasure.IOU if not all(map(_has_classes, self._answers)):
                return ScoreForm.PROBABILITIES if self._between_0_and_1 else ScoreForm.LOGITS
            case _:
                return None

    @property
    def read_as(self) -> str:
        """How an answer of several decisions is read, where the measure depends on that, in a sentence without its end;
        else empty. Which dimension holds the scores no model declares."""
        count, scores = self._rows[0].shape[1:]
        if self.measure not in _DECIDING or count < 2:
            return ""
        of_each = "of yes or no" if scores == 1 else f"among {scores:,} scores, which the last dimension holds"
        return (
            f"The measure {self.measure} reads each row of an answer of the shape {tuple(self._answers[0].shape)} as "
            f"{count:,} decisions {of_each}. If another dimension holds the scores, judge by rms or by a metric of "
            "your own (--metric FILE:function)"
        )

    def count(self, i: int) -> int:
        """How many rows the original's answer ``i`` has."""
        return len(self._rows[i])

    def counted(self, i: int) -> Tensor:
        """Which rows of the original's answer ``i`` count: where nothing was found, something may be found."""
        counts = self._counts(i)
        return counts.any(1) | (counts.shape[1] == 0)

    def worse(self, i: int, answer: Tensor) -> Tensor:
        """By how much each row of a candidate's ``answer`` to sample ``i`` is, from -1 to 1."""
        original = self._rows[i]
        if answer.shape != self._answers[i].shape:
            return torch.ones(len(original))
        rows = rows_of(answer, self._by_rows)
        worse = self._compared(i, original, rows)
        worse[_without_a_number(original, rows)] = 1.0
        return worse.clamp(-1, 1).nan_to_num(1.0)

    def _compared(self, i: int, original: Tensor, candidate: Tensor) -> Tensor:
        match self.measure:
            case AccuracyMeasure.AGREEMENT | AccuracyMeasure.DECIDED:
                return self._mean(i, (self._decided(candidate) != self._decided(original)).float())
            case AccuracyMeasure.ACCURACY:
                return self._hits(i, original) - self._hits(i, candidate)
            case AccuracyMeasure.PERPLEXITY:
                return self._mean(i, self._of_labels(i, original) - self._of_labels(i, candidate))
            case AccuracyMeasure.KL:
                p, q = self._log_probabilities(original), self._log_probabilities(candidate)
                return self._mean(i, torch.where(p == -math.inf, 0, p.exp() * (p - q)).flatten(2).sum(-1))
            case AccuracyMeasure.RMS:
                error, size = (rows.flatten(1).norm(dim=1) for rows in (candidate - original, original))
                return torch.where(error == 0, 0, error / size)
            case AccuracyMeasure.RANK:
                return _rank_lost(*self._cosines(original, candidate))
            case AccuracyMeasure.NEAREST:
                return self._neighbour_lost(i, *self._cosines(original, candidate))
            case AccuracyMeasure.CHARACTERS:
                return self._characters_lost(i, original, candidate)
            case AccuracyMeasure.OWN:
                raise AssertionError("the user's metric is asked, not computed here")
            case AccuracyMeasure.IOU:
                masks = (self._masks(rows.reshape(self._answers[i].shape)) for rows in (original, candidate))
                pairs = zip(*masks, strict=True) if self._by_rows else [tuple(masks)]
                return torch.tensor([1 - _iou(*pair) for pair in pairs])

    def _counts(self, i: int) -> Tensor:
        """Which decisions of which rows count."""
        rows, left_out = self._rows[i], self._left_out[i]
        if self.measure in _LABELLED:
            return self._classes[i] >= 0
        sure = self.measure is AccuracyMeasure.DECIDED
        counts = self._sure(rows) if sure else torch.ones(rows.shape[:2], dtype=torch.bool)
        return counts if left_out is None else counts & ~left_out

    def _mean(self, i: int, of_decisions: Tensor) -> Tensor:
        """Of the decisions that count, for each row; 0 where there are none."""
        counts = self._counts(i)
        return torch.where(counts, of_decisions, 0).sum(1) / counts.sum(1).clamp_min(1)

    def hits(self, i: int) -> Tensor:
        """The share of labels that the original hits in each row of its answer ``i``."""
        return self._hits(i, self._rows[i])

    def _hits(self, i: int, rows: Tensor) -> Tensor:
        return self._mean(i, (self._decided(rows) == self._classes[i]).float())

    def _checked_labels(self) -> list[Tensor]:
        assert self._labels is not None
        pairs = zip(self._labels, self._rows, strict=True)
        return [decision_labels(label, rows, i) for i, (label, rows) in enumerate(pairs, start=1)]

    def _unlabelled(self) -> list[Tensor | None]:
        """Of each answer, which decisions have a label that says they do not count (padding); None: that is not known,
        since there are no labels, or they are not of these decisions."""
        labels = [None] * len(self._rows) if self._labels is None else self._labels
        return [ignored(label, rows) for label, rows in zip(labels, self._rows, strict=True)]

    def _check_shapes(self) -> None:
        """Raises SubjectError for answers that the measure cannot compare."""
        shapes = [tuple(answer.shape) for answer in self._answers]
        embedded = [shape[1:] if self._by_rows else shape for shape in shapes]
        if self.measure in _EMBEDDED and len(set(embedded)) > 1:
            other = next(shape for shape, size in zip(shapes, embedded, strict=True) if size != embedded[0])
            raise SubjectError(
                f"the measure {self.measure} compares embeddings of one size, and the original's answers have the "
                f"shapes {shapes[0]} and {other}: judge by rms, or by a metric of your own (--metric FILE:function)"
            )
        if self.measure in _DECIDING and all(map(_is_picture, self._inputs, self._answers)):
            raise SubjectError(
                f"the measure {self.measure} reads the scores of a decision from the last dimension, and that of the "
                f"original's answers {shapes[0]} is the width of a picture: judge masks by iou, other pictures by rms, "
                "or either by a metric of your own (--metric FILE:function)"
            )
        texts = [shape for shape in shapes if len(shape) > 2 and shape[1] > 1]
        if self.measure is AccuracyMeasure.CHARACTERS and texts and not self._by_rows:
            raise SubjectError(
                f"the measure characters reads answers of (rows, steps, classes), and the original's have {texts[0]} "
                "for samples of another number of rows: have the model return rows first, or judge by a metric of your "
                "own (--metric FILE:function)"
            )

    def _decided(self, rows: Tensor) -> Tensor:
        """The place of the largest score; of a single score, whether it is likelier than not. An integer is decided."""
        if not rows.is_floating_point():
            return rows[..., 0]
        if rows.shape[-1] > 1:
            return rows.argmax(-1)
        return (rows[..., 0] > (0.0 if self._form is ScoreForm.LOGITS else 0.5)).long()

    def _sure(self, rows: Tensor) -> Tensor:
        """What is decided has a probability above one half."""
        if self._form is ScoreForm.INDEPENDENT:
            return rows.amax(-1) > 0.5
        return self._log_probabilities(rows).amax(-1) > math.log(0.5)

    def _of_labels(self, i: int, rows: Tensor) -> Tensor:
        """The logarithm of each label's probability in an answer to sample ``i``."""
        labels = self._classes[i].clamp_min(0)[..., None]
        return self._log_probabilities(rows).gather(-1, labels)[..., 0]

    def _log_probabilities(self, rows: Tensor) -> Tensor:
        """Of the classes; of a single score of no and yes; of independent ones of each no and yes."""
        if self._form is not ScoreForm.PROBABILITIES and rows.shape[-1] > 1:
            independent = self._form is ScoreForm.INDEPENDENT
            return _log_shares(torch.stack([1 - rows, rows], -1)) if independent else rows.log_softmax(-1)
        if self._form is ScoreForm.LOGITS:
            return nn.functional.logsigmoid(torch.cat([-rows, rows], -1))
        return _log_shares(rows if rows.shape[-1] > 1 else torch.cat([1 - rows, rows], -1))

    def _cosines(self, original: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row with all of the original's embeddings: of the original's row, and of the candidate's."""
        assert self._all is not None
        of_original, of_candidate = (_directions(rows.flatten(1)) @ self._all.T for rows in (original, candidate))
        return of_original, of_candidate

    def _neighbour_lost(self, i: int, original: Tensor, candidate: Tensor) -> Tensor:
        """1 where the candidate's nearest of the other rows is further from the original's row than its own nearest."""
        own = torch.arange(len(original))
        for cosines in (original, candidate):
            cosines[own, self._first_row[i] + own] = -math.inf
        chosen = original.gather(1, candidate.argmax(1, keepdim=True))[:, 0]
        return (chosen < original.amax(1) - _AS_NEAR).float()

    def _characters_lost(self, i: int, original: Tensor, candidate: Tensor) -> Tensor:
        """By how much the character error rate of each row rises: against its label, else the original's text."""
        of_original, of_candidate = ([read(row) for row in rows] for rows in (original, candidate))
        pairs = zip(of_original, of_candidate, self._texts[i], strict=True)
        return torch.tensor([error_rate(now, text) - error_rate(before, text) for before, now, text in pairs])

    def _right_texts(self) -> list[list[list[int]]]:
        """Of each sample those of its rows: the labels, else what the original reads."""
        if self._labels is None:
            return [[read(row) for row in rows] for rows in self._rows]
        pairs = zip(self._labels, self._rows, strict=True)
        return [text_labels(label, rows, i) for i, (label, rows) in enumerate(pairs, start=1)]

    def _masks(self, answer: Tensor) -> Tensor:
        """The class of each place of each row, 0 where there is nothing. ``(N, C, H, W)`` has scores of C classes."""
        if _has_classes(answer):
            return answer.argmax(1) + 1
        return (answer > (0.5 if self._between_0_and_1 else 0.0)).long()


def _without_a_number(original: Tensor, candidate: Tensor) -> Tensor:
    """Which rows hold none in a place where the original's do. Its infinities are numbers: of classes that are ruled
    out."""
    lost = (candidate.isnan() & ~original.isnan()) | (candidate.isinf() & original.isfinite())
    return lost.flatten(1).any(1)


def _is_picture(sample: Inputs, answer: Tensor) -> bool:
    """Its last two dimensions are the height and width of the sample's own picture, or of one as high and wide but for
    its size: what a convolution makes of it."""
    arrays = filter(is_array, (*sample.args, *sample.kwargs.values()))
    given = next((each for each in itertools.chain(sample.tensors(), arrays) if each.ndim), None)
    nested = isinstance(given, Tensor) and given.is_nested
    if given is None or nested or given.ndim < _PICTURE or answer.dim() < 3 or min(answer.shape[-2:]) < 2:
        return False
    if answer.dim() < _PICTURE:
        return tuple(answer.shape[-2:]) == tuple(given.shape[-2:])
    return bool(answer.shape[-2] * given.shape[-1] == answer.shape[-1] * given.shape[-2])


def _has_classes(masks: Tensor) -> bool:
    return masks.dim() == 4 and masks.shape[1] > 1


def _log_shares(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(_LEAST_PROBABILITY).log().log_softmax(-1)


def _directions(rows: Tensor) -> Tensor:
    return nn.functional.normalize(rows, dim=1)


def _rank_lost(original: Tensor, candidate: Tensor) -> Tensor:
    """One less Spearman's correlation of the cosines."""
    ranks = [cosines.argsort(1).argsort(1).float() for cosines in (original, candidate)]
    one, other = (rank - rank.mean(1, keepdim=True) for rank in ranks)
    correlation: Tensor = (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1))
    return 1 - correlation


def _iou(one: Tensor, other: Tensor) -> float:
    """The intersection over the union of two masks, as a mean of the classes that are in either; 1 if none is."""
    found = torch.bincount(torch.cat([one.flatten(), other.flatten()])).nonzero().flatten().tolist()
    classes = [kind for kind in found if kind > 0]
    shares = [float(((one == k) & (other == k)).sum() / ((one == k) | (other == k)).sum()) for k in classes]
    return math.fsum(shares) / len(shares) if shares else 1.0
