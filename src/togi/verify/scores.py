"""The forms of a model's scores: logits, probabilities, or independent probabilities of several labels.

No model declares its form, so the original's answers to all samples show it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from togi.core.choices import ScoreForm

_SUM_ROUNDING = 1e-3
"""A sum of float32 probabilities may miss 1 by so much: there may be a hundred thousand of them."""
_ROUNDED_TO = (torch.bfloat16, torch.float16)


def form_of(answers: Sequence[Tensor]) -> ScoreForm:
    """The form of the original's answers, each ``(rows, decisions, scores)``. Rows with NaN show nothing."""
    rows = [found for answer in answers if len(found := known_rows(answer.flatten(0, 1)))]
    if not rows or not all_between_0_and_1(rows):
        return ScoreForm.LOGITS
    if all(_sums_to_one(found) for found in rows):
        return ScoreForm.PROBABILITIES
    return ScoreForm.INDEPENDENT


def known_rows(answer: Tensor) -> Tensor:
    """The rows of an answer without NaN. Infinity is a logit: of a class that is ruled out."""
    return answer[~answer.flatten(1).isnan().any(1)]


def all_between_0_and_1(answers: Sequence[Tensor]) -> bool:
    return all(bool(((answer >= 0) & (answer <= 1)).all()) for answer in answers)


def _sums_to_one(rows: Tensor) -> bool:
    """The single scores of a sigmoid count as such: yes and no sum to 1."""
    return rows.shape[-1] == 1 or bool(((rows.sum(-1) - 1).abs() <= _tolerance(rows)).all())


def _tolerance(rows: Tensor) -> float:
    """How far a sum of probabilities may miss 1 by rounding. The values themselves show their precision, since a model
    may return as float32 what it computed in 16 bits."""
    for dtype in _ROUNDED_TO:
        if torch.equal(rows.to(dtype).to(rows.dtype), rows):
            steps = torch.finfo(dtype)
            return _SUM_ROUNDING + steps.eps + rows.shape[-1] * steps.tiny * steps.eps
    return _SUM_ROUNDING
