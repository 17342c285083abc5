"""What the numbers of an answer are: of which row, and whether logits, probabilities, or those of independent labels.

No model declares it, so the original's answers to all samples show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.choices import ScoreForm
from togi.subject.inputs import Inputs
from togi.subject.leaves import is_array

_SUM_ROUNDING = 1e-3
"""A sum of float32 probabilities may miss 1 by so much: there may be a hundred thousand of them."""
_ROUNDED_TO = (torch.bfloat16, torch.float16)


def by_rows(samples: Sequence[Inputs], answers: Sequence[Tensor]) -> bool:
    """Whether the first dimension of each answer counts the rows of its sample. Else (boxes of a picture, steps of a
    sequence) what is answered to one sample depends on each other."""
    return all(
        answer.dim() > 0 and len(answer) == _rows(sample) for sample, answer in zip(samples, answers, strict=True)
    )


def rows_of(answer: Tensor, by_rows: bool) -> Tensor:
    """``(rows, decisions of a row, scores)``. What is not ``by_rows`` is one row."""
    count = len(answer) if by_rows else 1
    if not answer.numel():
        return answer.reshape(count, 0, 1)
    scores = answer.shape[-1] if answer.dim() > int(by_rows) else 1
    return answer.reshape(count, -1, scores)


def _rows(sample: Inputs) -> int | None:
    """The length of its first argument that has one: masks and tables for all rows come later."""
    lengths = map(_length, (*sample.args, *sample.kwargs.values()))
    return next((length for length in lengths if length is not None), None)


def _length(argument: Any) -> int | None:
    """Of a list (of texts, of pictures) its length, of all else the first size of its first tensor that has one."""
    if isinstance(argument, list):
        return len(argument)
    if is_array(argument):
        return argument.shape[0] if argument.ndim else None
    return next((tensor.size(0) for tensor in Inputs((argument,)).tensors() if tensor.dim()), None)


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
