"""A step whose loss is a mean over tokens is not run in parts, however even its samples are; one that is a mean over
rows is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from togi.core.records import ErrorReport
from togi.subject.inputs import Inputs, Subject
from togi.subject.training import TrainingStep
from togi.techniques.registry import technique
from togi.verify.step_truth import make_step_truth
from togi.verify.training import verify_step
from togi.verify.uneven_rows import uneven_rows

Step = Callable[[nn.Module, Any], Tensor]


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(11, 6), nn.Linear(6, 11)

    def forward(self, words: Tensor) -> Tensor:
        answer: Tensor = self.out(torch.tanh(self.words(words)))
        return answer


def sample() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    words = torch.randint(0, 11, (8, 6), generator=generator)
    labels = torch.randint(0, 11, (8, 6), generator=generator)
    full = torch.ones(8, 6, dtype=torch.long)
    return {"words": words, "labels": labels, "mask": full, "lengths": full.sum(1), "share": full[:, 0].float()}


def losses(module: nn.Module, batch: dict[str, Tensor], ignored: int = -100) -> Tensor:
    """By row and token."""
    return functional.cross_entropy(
        module(batch["words"]).transpose(1, 2), batch["labels"], ignore_index=ignored, reduction="none"
    )


def ignoring(ignored: int) -> Step:
    def step(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(
            module(batch["words"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=ignored
        )

    return step


def masked(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (losses(module, batch) * batch["mask"]).sum() / batch["mask"].sum()


def within_lengths(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    counts = torch.arange(6) < batch["lengths"][:, None]
    return losses(module, batch)[counts].mean()


def weighted(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (losses(module, batch).mean(1) * batch["share"]).sum() / batch["share"].sum()


def per_row(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    counts = (batch["mask"] * (batch["labels"] >= 0)).float()
    by_row = (losses(module, batch) * counts).sum(1) / counts.sum(1)
    return by_row.mean()


def next_word(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(module(batch["words"][:, :-1]).flatten(0, 1), batch["words"][:, 1:].flatten())


def by_batch_size(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Right for eight rows in fours, and for no smaller batch."""
    each = losses(module, batch).mean(1)
    return each.mean() if len(each) in (8, 2, 4) else each.mean() * (1 + len(each))


def report_of(step: Step, parts: int, **options: Any) -> ErrorReport:
    torch.manual_seed(0)
    given = {"step": step, "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-3)} | options
    plain = TrainingStep.of(Subject(Words(), sample(), **given))
    truth = make_step_truth(plain, seed=1)
    return verify_step(lambda one: technique("micro_batches").apply_step(one, {"parts": parts}), truth)


TOKENS = {"-100": ignoring(-100), "-1": ignoring(-1), "mask": masked, "lengths": within_lengths, "weights": weighted}


@pytest.mark.parametrize("parts", [2, 8])
@pytest.mark.parametrize("name", TOKENS)
def test_a_mean_over_what_counts_is_refused_on_a_sample_where_all_counts(name: str, parts: int) -> None:
    report = report_of(TOKENS[name], parts)
    assert not report.faithful
    assert report.problems[0].startswith("the loss is a mean over tokens, not rows: with ")


@pytest.mark.parametrize("parts", [2, 8])
@pytest.mark.parametrize("step", [per_row, next_word], ids=lambda step: step.__name__)
def test_a_mean_over_rows_is_right(step: Step, parts: int) -> None:
    report = report_of(step, parts)
    assert report.faithful, report.problems


def test_a_step_that_is_right_for_one_size_alone_is_refused() -> None:
    report = report_of(by_batch_size, 4)
    assert "a batch of 3 rows" in report.problems[0]


def test_it_is_found_in_float32_too() -> None:
    class Single(Words):
        def forward(self, words: Tensor) -> Tensor:
            assert self.out.weight.dtype == torch.float32
            return super().forward(words)

    torch.manual_seed(0)
    for step, faithful in ((masked, False), (per_row, True)):
        plain = TrainingStep.of(Subject(Single(), sample(), step=step, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)))
        truth = make_step_truth(plain, seed=1)
        assert truth.exact is None
        report = verify_step(lambda one: technique("micro_batches").apply_step(one, {"parts": 4}), truth)
        assert report.faithful == faithful, report.problems


def test_rows_are_changed_by_place_and_the_others_stay() -> None:
    words = torch.randint(2, 9, (3, 5))
    given = Inputs(
        (words, words), {"unsigned": words.to(torch.uint8), "pictures": torch.randn(3, 4), "one": words[0, 0]}
    )
    changed = list(uneven_rows(given))
    assert len(changed) == 5 + 5 + 3
    for _, copied in changed:
        differing = [not torch.equal(one, two) for one, two in zip(copied.tensors(), given.tensors(), strict=True)]
        assert sum(differing) == 1
        for one, two in zip(copied.tensors()[:4], given.tensors()[:4], strict=True):
            assert torch.equal(one[1:], two[1:])
        where = copied.tensors()[differing.index(True)][0]
        assert torch.equal(where[:3], words[0, :3].to(where.dtype)), "what comes first still counts"
