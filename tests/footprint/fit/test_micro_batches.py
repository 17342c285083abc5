"""A batch in parts has the gradients of the whole batch, or is refused; and its peak is lower in proportion."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from togi.core.errors import FitError
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.training.fit import fit_training
from togi.footprint.fit.training.micro_batch_proof import judge
from togi.footprint.fit.training.micro_batches import accumulated
from togi.footprint.step import Step, mean_of_outputs
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.inputs import Inputs
from togi.subject.micro_batches import backward, rows_of, split


def _step(module: nn.Module, *args: Any, loss: Callable[[nn.Module, Inputs], Tensor] = mean_of_outputs) -> Step:
    return Step(module=module, sample=Inputs(args), train=True, loss=loss)


def why_not(step: Step, parts: int, weigh: Callable[[Any], Any] | None = None) -> str:
    return judge(step, parts, weigh).reason


def _regression(module: nn.Module, sample: Inputs) -> Tensor:
    given, wanted = sample.args
    return functional.mse_loss(module(given), wanted)


def _gradients(module: nn.Module) -> list[Tensor]:
    found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    return found


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 17), share=st.floats(0, 1))
def test_parts_make_the_whole(rows: int, share: float) -> None:
    parts = 1 + int(share * (rows - 1))
    sample = Inputs((torch.arange(rows * 2).view(rows, 2),), {"scale": torch.tensor(2.0), "deep": [torch.ones(rows)]})
    pieces = split(sample, parts)
    sizes = [rows_of(piece) for piece in pieces]
    assert len(pieces) == parts
    assert max(sizes) - min(sizes) <= 1
    assert torch.equal(torch.cat([piece.args[0] for piece in pieces]), sample.args[0])
    assert all(piece.kwargs["scale"].dim() == 0 for piece in pieces)


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(2, 9), parts=st.integers(1, 9), seed=st.integers(0, 50))
def test_gradients_are_those_of_the_whole_batch(rows: int, parts: int, seed: int) -> None:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).double()
    step = _step(module, torch.randn(rows, 3).double(), torch.randn(rows, 2).double(), loss=_regression)
    whole = step.loss(module, step.sample)
    whole.backward()
    expected = _gradients(module)
    found = backward(module, step.sample, step.loss, min(parts, rows))
    assert not found.requires_grad
    torch.testing.assert_close(found, whole.detach())
    for one, other in zip(_gradients(module), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert why_not(step, min(parts, rows)) == ""


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict", "inputs"])
def test_the_step_gets_what_it_would_get(form: str) -> None:
    rows, module = torch.randn(6, 3), nn.Linear(3, 1)
    sample: Any = {"tensor": rows, "tuple": (rows, rows), "dict": {"x": rows}, "inputs": Inputs((rows,))}[form]
    seen: list[Any] = []

    def step(module: nn.Module, given: Any) -> Tensor:
        seen.append(type(given))
        tensor = {"tensor": lambda: given, "tuple": lambda: given[0], "dict": lambda: given["x"]}
        return module(tensor.get(form, lambda: given.args[0])()).square().mean()

    backward(module, sample, step, 3)
    assert seen == [type(sample)] * 3


def test_gradients_that_are_there_are_added_to_and_a_scale_is_theirs_alone() -> None:
    module, rows = nn.Linear(3, 1), torch.randn(4, 3)

    def step(module: nn.Module, given: Any) -> Tensor:
        return module(given).square().mean()

    loss = backward(module, rows, step, 2)
    once = [p.grad.clone() for p in module.parameters()]  # type: ignore[union-attr]
    again = backward(module, rows, step, 2, scale=lambda value: value * 3)
    torch.testing.assert_close(loss, again)
    for one, parameter in zip(once, module.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, one * 4)


def _tokens(count_per_row: list[int]) -> tuple[Tensor, Tensor]:
    labels = torch.full((len(count_per_row), 8), -100)
    for row, count in enumerate(count_per_row):
        labels[row, :count] = torch.arange(count)
    return torch.randn(len(count_per_row), 8, 5), labels


def _language(module: nn.Module, sample: Inputs) -> Tensor:
    hidden, labels = sample.args
    return functional.cross_entropy(module(hidden).flatten(0, 1), labels.flatten())


def test_a_mean_over_tokens_needs_their_number_as_weight() -> None:
    torch.manual_seed(0)
    step = _step(nn.Linear(5, 9), *_tokens([8, 7, 8, 8]), loss=_language)
    said = why_not(step, 2)
    assert "number of tokens as weight" in said

    def tokens(sample: Inputs) -> Tensor:
        return (sample.args[1] != -100).sum()

    shown = judge(step, 2, tokens)
    assert shown.reason == ""
    assert shown.dtype is torch.float64
    assert shown.relative_difference is not None
    assert shown.relative_difference < 1e-12
    even = _step(nn.Linear(5, 9), *_tokens([6, 6, 6, 6]), loss=_language)
    assert why_not(even, 4) == ""
    assert judge(even, 4).uneven.startswith("a mean over tokens, not rows: with -100")
    assert judge(even, 4, tokens).uneven == ""
    assert judge(_step(nn.Linear(4, 3), torch.randn(6, 4)), 2).uneven == ""
    uneven = _step(nn.Linear(5, 9), *_tokens([8, 0, 0, 3]), loss=_language)
    assert why_not(uneven, 2, tokens) == ""


def _contrastive(module: nn.Module, sample: Inputs) -> Tensor:
    first = functional.normalize(module(sample.args[0]), dim=1)
    return functional.cross_entropy(first @ first.T / 0.1, torch.arange(len(first)))


def _summed(module: nn.Module, sample: Inputs) -> Tensor:
    return module(sample.args[0]).square().sum()


def _sequential_loss(module: nn.Module, sample: Inputs) -> Tensor:
    return (module(sample.args[0]).mean(1) * torch.arange(len(sample.args[0]))).mean()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (_contrastive, "contrastive"),
        (_summed, "a sum over rows has to be divided"),
        (_sequential_loss, "reverse order"),
    ],
)
def test_losses_that_are_not_a_mean_over_rows_are_refused(
    loss: Callable[[nn.Module, Inputs], Tensor], said: str
) -> None:
    torch.manual_seed(0)
    assert said in why_not(_step(nn.Linear(4, 3), torch.randn(6, 4), loss=loss), 2)


def test_gradients_that_are_not_finite_are_named() -> None:
    assert "NaN or infinities" in why_not(_step(nn.Linear(3, 1), torch.full((4, 3), torch.nan)), 2)


def test_batch_statistics_are_refused_by_name_and_frozen_ones_are_not() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
    step = _step(module, torch.randn(6, 3))
    assert "1 uses the statistics of the batch" in why_not(step, 2)
    module[1].eval()
    assert why_not(step, 2) == ""
    module[1] = nn.BatchNorm1d(3, track_running_stats=False).eval()
    assert "statistics" in why_not(step, 2)


def test_dropout_makes_it_approximate_and_leaves_the_mode() -> None:
    module = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)).train()
    step = _step(module, torch.randn(6, 3))
    state = torch.get_rng_state()
    shown = judge(step, 3)
    assert shown.reason == ""
    assert shown.approximate
    assert module[1].training
    assert torch.equal(torch.get_rng_state(), state)

    class Noisy(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + torch.randn(len(input), 1)

    assert "random numbers even in eval mode" in why_not(_step(Noisy(3, 1), torch.randn(6, 3)), 3)


def test_state_that_moves_with_every_call_is_refused_and_put_back() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, input: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(input)

    module = Counting()
    assert "buffer calls" in why_not(_step(module, torch.randn(6, 3)), 2)
    assert module.calls == 0


def test_modules_of_one_dtype_are_compared_in_it() -> None:
    class Single(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            assert input.dtype == torch.float32
            return super().forward(input)

    torch.manual_seed(0)
    step = _step(Single(5, 9), *_tokens([8, 7, 8, 8]), loss=_language)
    shown = judge(step, 2)
    assert shown.dtype is torch.float32
    assert shown.reason
    assert judge(dataclasses.replace(step, sample=Inputs(_tokens([8, 8, 8, 8]))), 2).reason == ""


def test_few_rows_prove_where_the_batch_does_not_fit() -> None:
    torch.manual_seed(0)
    seen: list[int] = []

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        seen.append(len(sample.args[0]))
        return module(sample.args[0]).square().mean()

    assert judge(_step(nn.Linear(3, 2), torch.randn(64, 3), loss=loss), 16, rows=2).reason == ""
    assert max(seen) == 2


def test_samples_without_common_rows_and_impossible_parts_are_explained() -> None:
    module = nn.Linear(3, 1)
    assert "cannot be divided into rows" in why_not(_step(module, torch.randn(6, 3), torch.ones(3, 3)), 2)
    assert "cannot be divided" in why_not(_step(module), 2)
    assert "give from 1 to 6" in why_not(_step(module, torch.randn(6, 3)), 7)
    with pytest.raises(FitError, match="0 micro-batches"):
        split(Inputs((torch.randn(6, 3),)), 0)
    with pytest.raises(FitError, match="weights are finite"):
        backward(module, torch.randn(6, 3), lambda m, x: m(x).mean(), 2, weigh=lambda _part: 0)


def test_a_step_in_parts_stands_in_for_the_step() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
    step = _step(module, torch.randn(7, 3), torch.randn(7, 2), loss=_regression)
    outcomes = []
    for one in (step, accumulated(step, 3)):
        loss = one.loss(module, one.sample)
        loss.backward()
        outcomes.append([loss.detach(), *_gradients(module)])
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(FitError, match="scaled by 2"):
        (accumulated(step, 3).loss(module, step.sample) * 2).backward()


def test_the_peak_falls_in_proportion() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU())]
    module = nn.Sequential(*layers)
    step = _step(module, torch.randn(2048, 32))
    peaks = {}
    for parts in (1, 2, 8):
        run = accumulated(step, parts)
        run.run()
        peaks[parts] = torch_allocator_peak_bytes(run.run)
    assert peaks[1] is not None
    gradients = sum(p.nbytes for p in module.parameters())
    for parts in (2, 8):
        peak = peaks[parts]
        assert peak is not None
        assert peak - gradients <= 1.1 * (peaks[1] - gradients) / parts + gradients  # two gradients for a moment


def test_a_plan_runs_its_number_of_parts() -> None:
    seen: list[int] = []

    def step(module: nn.Module, given: Tensor) -> Tensor:
        seen.append(len(given))
        return module(given).square().mean()

    plan = Plan.model_validate_json(Plan(micro_batches=3).model_dump_json())
    assert not plan.backward(nn.Linear(3, 1), torch.randn(7, 3), step).requires_grad
    assert sorted(seen) == [2, 2, 3]
    Plan().backward(nn.Linear(3, 1), torch.randn(7, 3), step)
    assert seen[-1] == 7


def test_a_plan_in_parts_notes_a_mean_over_tokens() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.GELU())]
    labels = torch.randint(0, 9, (64, 16))
    step = _step(nn.Sequential(*layers, nn.Linear(32, 9)), torch.randn(64, 16, 32), labels, loss=_language)
    peak = fit_training(step, 1).chosen.peak_bytes
    found = fit_training(step, int(peak * 0.7), allow_approximate=True)
    assert found.plan.micro_batches > 1
    (note,) = [note for note in found.notes if "mean over tokens" in note]
    assert "weigh=" in note


def test_a_part_that_weighs_nothing_is_left_out() -> None:
    """Its mean over no tokens is NaN."""
    torch.manual_seed(0)
    module, sample = nn.Linear(5, 9), Inputs(_tokens([8, 3, 0, 0]))

    def tokens(part: Inputs) -> Tensor:
        return (part.args[1] != -100).sum()

    whole = _language(module, sample)
    whole.backward()
    expected = _gradients(module)
    torch.testing.assert_close(backward(module, sample, _language, 2, weigh=tokens), whole.detach())
    for one, other in zip(_gradients(module), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert why_not(_step(module, *sample.args, loss=_language), 2, tokens) == ""
