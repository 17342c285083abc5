"""The technique ``fused_loss``: no logits are made where nobody looks at them, and the step trains as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from togi.core.errors import Refused
from togi.machine.describe import machine
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.inputs import Subject
from togi.subject.training import TrainingStep
from togi.techniques import Applies, recipe, technique
from togi.techniques.base import Options, Refuses
from togi.techniques.build import build_step
from togi.techniques.deferred_logits import LEAST_CLASSES, DeferredLogits, Logits
from togi.verify.step_truth import make_step_truth
from togi.verify.training import verify_step
from togi.worker.training_survey import survey_step

WORDS, WIDTH, ROWS, LENGTH = LEAST_CLASSES, 16, 8, 32


class Language(nn.Module):
    """Its head has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Any:
        return self.head(torch.tanh(self.inner(self.embedding(tokens))))


def next_token(module: nn.Module, tokens: Tensor) -> Tensor:
    """A mean over the tokens that are not ignored."""
    logits = module(tokens)[..., :-1, :].float().contiguous()
    labels = tokens[..., 1:].masked_fill(tokens[..., 1:] % 5 == 0, -100)
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), labels.reshape(-1))


def smoothed(module: nn.Module, tokens: Tensor) -> Tensor:
    loss = nn.CrossEntropyLoss(label_smoothing=0.1, reduction="sum")
    summed: Tensor = loss(module(tokens).flatten(0, 1), tokens.flatten())
    return summed / 100


def looking(module: nn.Module, tokens: Tensor) -> Tensor:
    """Something else is asked of the logits, too."""
    logits = module(tokens)
    regular = (logits**2).mean() + logits.exp().mean()
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()) + 1e-3 * regular


def step_of(loss: Any = next_token) -> TrainingStep:
    torch.manual_seed(0)
    tokens = torch.randint(0, WORDS, (ROWS, LENGTH))
    given: dict[str, Any] = {"step": loss, "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-3)}
    return TrainingStep.of(Subject(Language().train(), [tokens], **given))


@pytest.mark.parametrize("loss", [next_token, smoothed, looking])
def test_it_trains_as_before(loss: Any) -> None:
    truth = make_step_truth(step_of(loss), seed=1)
    report = verify_step(lambda step: technique("fused_loss").apply_step(step, {}), truth)
    assert report.faithful, report.problems
    assert any("In float64" in note for note in report.notes), "other kernels compute it"


def peak_bytes(step: TrainingStep) -> int:
    step.run(step.samples[0])
    peak = torch_allocator_peak_bytes(lambda: step.run(step.samples[0]))
    assert peak is not None
    return peak


@pytest.mark.parametrize("others", [{}, {"recompute": {"keep": 0.0}}], ids=str)
def test_no_logits_are_there(others: dict[str, Options]) -> None:
    logits_bytes = 4 * ROWS * LENGTH * WORDS
    plain = peak_bytes(build_step(recipe(plain_step={}), step_of()))
    fused = peak_bytes(build_step(recipe(fused_loss={}, **others, plain_step={}), step_of()))
    assert plain > 2 * logits_bytes
    assert fused < plain - logits_bytes


def test_it_applies_where_a_loss_may_be_fused() -> None:
    facts = survey_step(step_of(), seed=0, machine=machine("cpu")).facts
    assert isinstance(technique("fused_loss").applies(facts), Applies)
    for changed in ({"own_loop": True}, {"functions": {"linear": 2}}):
        assert isinstance(technique("fused_loss").applies(facts.model_copy(update=changed)), Refuses)


def few_classes(module: nn.Module, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(module(tokens)[..., : WORDS // 2].flatten(0, 1), tokens.flatten() % (WORDS // 2))


def weighed(module: nn.Module, tokens: Tensor) -> Tensor:
    weights = torch.ones(WORDS, dtype=module.head.weight.dtype)  # type: ignore[union-attr]
    return functional.cross_entropy(module(tokens).flatten(0, 1), tokens.flatten(), weights)


@pytest.mark.parametrize("loss", [few_classes, weighed])
def test_what_needs_the_logits_is_refused(loss: Any) -> None:
    step = step_of(loss)
    random = torch.get_rng_state()
    with pytest.raises(Refused, match="4,096 outputs and more"):
        technique("fused_loss").apply_step(step, {})
    assert torch.equal(torch.get_rng_state(), random)


ASKED = {
    "rows": lambda x: x[:, 1:],
    "a row": lambda x: x[0],
    "the last token": lambda x: x[:, -1],
    "all but the last": lambda x: x[..., :-1, :],
    "some classes": lambda x: x[..., :7],
    "some classes by place": lambda x: x[:, :, 3],
    "chosen rows": lambda x: x[torch.tensor([0, 2])],
    "a new dimension": lambda x: x[None],
    "two dimensions": lambda x: x.view(-1, WORDS),
    "by a size": lambda x: x.reshape(x.shape),
    "another shape": lambda x: x.view(-1),
    "other rows": lambda x: x.view(4, -1, WORDS),
    "flat": lambda x: x.flatten(),
    "flat rows": lambda x: x.flatten(0, 1),
    "transposed": lambda x: x.transpose(1, 2),
    "the best": lambda x: x.argmax(-1),
    "a function": lambda x: torch.softmax(x, -1),
    "twice": lambda x: 2 * x + x,
    "in float64": lambda x: x.double(),
    "compared": lambda x: x > 0,
    "several": lambda x: torch.cat([x, x]),
}


@pytest.mark.parametrize("asked", ASKED)
def test_logits_answer_as_tensors_do(asked: str) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 6, WIDTH), torch.randn(WORDS, WIDTH)
    with DeferredLogits():
        logits = functional.linear(hidden, weight)
        assert type(logits) is Logits
        answer = ASKED[asked](logits)
    expected = ASKED[asked](functional.linear(hidden, weight))
    assert answer.shape == expected.shape
    assert answer.dtype == expected.dtype
    made = answer.tensor if type(answer) is Logits else answer
    torch.testing.assert_close(made, expected)
    assert logits.requires_grad is False
    assert (logits.ndim, logits.dim(), len(logits), logits.size(-1)) == (3, 3, 4, WORDS)


def test_under_autocast_they_have_its_dtype() -> None:
    hidden, weight = torch.randn(4, WIDTH), torch.randn(WORDS, WIDTH)
    with torch.autocast("cpu", torch.bfloat16), DeferredLogits() as seen:
        logits = functional.linear(hidden, weight)
        assert logits.dtype is torch.bfloat16
        assert logits.float().dtype is torch.float32
        assert logits.float().tensor.dtype is torch.float32
        loss = functional.cross_entropy(logits.float(), torch.arange(4))
        expected = functional.cross_entropy(logits.tensor.float(), torch.arange(4))
    assert seen.fused == 1
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("given", [(None, None, 3), (None, False, 3), (torch.ones(WORDS), None, 3, None, "sum")])
def test_a_cross_entropy_is_given_its_options_by_position_too(given: tuple[Any, ...]) -> None:
    hidden, weight, classes = torch.randn(4, WIDTH), torch.randn(WORDS, WIDTH), torch.arange(4)
    expected = functional.cross_entropy(functional.linear(hidden, weight), classes, *given)
    with DeferredLogits() as seen:
        loss = functional.cross_entropy(functional.linear(hidden, weight), classes, *given)
    assert seen.fused == (given[:2] == (None, None))
    torch.testing.assert_close(loss, expected)
