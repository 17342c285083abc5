"""Decisions of a candidate are counted against the original's over all samples, and the first that differs is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.core.records import Decisions, ErrorReport
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.verify.reference import make_truth
from togi.verify.verdict import verify

LENGTHS = (3, 4, 5)


class Original(nn.Module):
    def __init__(self, answer: Callable[..., Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, length: Tensor) -> Any:
        return self.answer(length)


def count_up(length: Tensor) -> Any:
    """The tokens 0, 1, ... of one text."""
    return torch.arange(int(length))


def report(original: Callable[..., Any], candidate: Callable[..., Any]) -> ErrorReport:
    samples, module = [Inputs((torch.tensor(length),)) for length in LENGTHS], Original(original)
    signature = Signature.of(module, samples, [original(*sample.args) for sample in samples])
    truth = make_truth(module, samples, signature, seed=0, samples=len(samples))
    return verify(candidate, truth, samples, signature, seed=0)


def counted(original: Callable[..., Any], candidate: Callable[..., Any]) -> Decisions | None:
    return report(original, candidate).decisions


def other_from(place: int, *, length: int) -> Callable[..., Any]:
    def call(given: Tensor) -> Any:
        found = count_up(given)
        if len(found) == length:
            found[place:] += 1
        return found

    return call


def test_equal_programs_agree_in_every_decision() -> None:
    found = report(count_up, count_up)
    assert found.faithful
    assert found.decisions == Decisions(agree=12, total=12)


@pytest.mark.parametrize(("length", "sample"), [(3, 1), (5, 3)])
def test_the_first_that_differs_is_reported(length: int, sample: int) -> None:
    found = counted(count_up, other_from(2, length=length))
    agree = 12 - (length - 2)
    assert found == Decisions(agree=agree, total=12, sample=sample, output="output", position=(2,))


def test_of_two_samples_that_differ_it_is_that_of_the_first() -> None:
    found = counted(count_up, lambda given: count_up(given).flip(0))
    assert found is not None
    assert (found.agree, found.sample, found.position) == (2, 1, (0,)), "the middle of three and of five agrees"


@pytest.mark.parametrize(("more", "total"), [(-1, 12), (2, 14)])
def test_of_texts_of_unequal_length_the_common_beginning_counts(more: int, total: int) -> None:
    def longer(given: Tensor) -> Any:
        return torch.arange(int(given) + (more if int(given) == 4 else 0))

    agree = 11 if more < 0 else 12
    expected = Decisions(agree=agree, total=total, sample=2, output="output", position=(min(4, 4 + more),))
    assert counted(count_up, longer) == expected


def test_a_difference_in_the_common_beginning_comes_before_its_end() -> None:
    def other(given: Tensor) -> Any:
        rows = torch.arange(int(given) - 1).repeat(2, 1)
        rows[1, 1] = 9
        return rows

    found = counted(lambda given: torch.arange(int(given)).repeat(2, 1), other)
    assert found == Decisions(agree=15, total=24, sample=1, output="output", position=(1, 1))


def test_values_of_python_and_those_that_one_has_alone_are_decisions() -> None:
    def answer(given: Tensor) -> Any:
        return {"text": "a" * int(given), "kept": [True] * int(given), "score": given * 0.5, "nothing": None}

    def other(given: Tensor) -> Any:
        found = answer(given)
        return found | {"text": "b", "kept": found["kept"][:-1]} if int(given) == 4 else found

    assert counted(answer, answer) == Decisions(agree=15, total=15)
    assert counted(answer, other) == Decisions(agree=13, total=15, sample=2, output="output['text']")


def test_numbers_are_not_decisions_and_how_many_there_are_is_one() -> None:
    def numbers(given: Tensor) -> Any:
        return torch.ones(int(given)) / 3

    assert counted(numbers, lambda given: numbers(given) * 1.1) is None
    found = counted(numbers, lambda given: numbers(given)[:3])
    assert found == Decisions(agree=0, total=2, sample=2, output="output")
