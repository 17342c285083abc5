"""The loss in parts is a loss: what is done to it before, around and after its backward pass means what it always
means."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from togi.subject.inputs import Inputs
from togi.subject.micro_batches import accumulated_loss

Loop = Callable[[Callable[[], Tensor], nn.Module], object]


class Tagger(nn.Module):
    """A tied weight, an unused one and two whose gradients autograd makes as one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 3, bias=False)
        self.one, self.two = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
        self.unused = nn.Parameter(torch.zeros(3))
        self.tied = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.second(torch.tanh(self.first(x))) + (self.one + self.two)
        return hidden @ self.tied


def mean_of_squares(module: nn.Module, sample: Inputs) -> Tensor:
    answer: Tensor = module(*sample.args)
    return answer.square().mean()


def zeroed_between(loss: Callable[[], Tensor], module: nn.Module) -> None:
    value = loss()
    module.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]


def scaled(loss: Callable[[], Tensor], _: nn.Module) -> None:
    (loss() * 3).backward()  # type: ignore[no-untyped-call]


def accumulated(loss: Callable[[], Tensor], _: nn.Module) -> None:
    for _time in range(2):
        (loss() / 2).backward()  # type: ignore[no-untyped-call]


def two_in_one(loss: Callable[[], Tensor], _: nn.Module) -> None:
    (loss() + 2 * loss()).backward()  # type: ignore[no-untyped-call]


def logged_only(loss: Callable[[], Tensor], _: nn.Module) -> None:
    loss().item()


def by_grad(loss: Callable[[], Tensor], module: nn.Module) -> None:
    used = [parameter for name, parameter in module.named_parameters() if name != "unused"]
    for parameter, gradient in zip(used, torch.autograd.grad(loss(), used), strict=True):
        parameter.grad = gradient


def regularised(loss: Callable[[], Tensor], module: nn.Module) -> None:
    (loss() + sum(p.square().sum() for p in module.parameters())).backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("loop", [zeroed_between, scaled, accumulated, two_in_one, logged_only, by_grad, regularised])
def test_loops_leave_the_gradients_that_they_leave_with_the_whole_batch(loop: Loop) -> None:
    torch.manual_seed(0)
    module = Tagger().double()
    other = copy.deepcopy(module)
    for tagger in (module, other):
        tagger.tied.grad = torch.ones_like(tagger.tied)
    sample = Inputs((torch.randn(11, 3).double(),))
    loop(lambda: mean_of_squares(module, sample), module)
    loop(lambda: accumulated_loss(mean_of_squares, 4)(other, sample), other)
    for (name, one), two in zip(module.named_parameters(), other.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None), name
        if one.grad is not None:
            torch.testing.assert_close(two.grad, one.grad, msg=name)


def test_a_second_backward_pass_needs_a_kept_graph_as_ever() -> None:
    module, sample = nn.Linear(3, 1), Inputs((torch.randn(4, 3),))
    loss = accumulated_loss(mean_of_squares, 2)(module, sample)
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    assert module.weight.grad is not None
    once = module.weight.grad.clone()
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(module.weight.grad, 3 * once)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_parameters_outside_of_the_module_get_their_gradients_too() -> None:
    module, head, sample = nn.Linear(3, 2), nn.Linear(2, 1), Inputs((torch.randn(4, 3),))

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        answer: Tensor = head(module(*sample.args))
        return answer.square().mean()

    loss(module, sample).backward()  # type: ignore[no-untyped-call]
    assert head.weight.grad is not None
    expected = head.weight.grad.clone()
    head.zero_grad()
    accumulated_loss(loss, 2)(module, sample).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(head.weight.grad, expected)


def test_sparse_gradients_stay_sparse() -> None:
    torch.manual_seed(0)
    sample = Inputs((torch.randint(0, 9, (6, 4)),))
    sparse, both = nn.Embedding(9, 3, sparse=True), nn.Embedding(9, 3, sparse=True)

    def tied(module: Any, sample: Inputs) -> Tensor:
        return functional.linear(module(sample.args[0]), module.weight).square().mean()

    for module, loss in ((sparse, mean_of_squares), (both, tied)):
        loss(module, sample).backward()  # type: ignore[no-untyped-call]
        assert module.weight.grad is not None
        expected = module.weight.grad
        module.zero_grad()
        (accumulated_loss(loss, 3)(module, sample) * 2).backward()  # type: ignore[no-untyped-call]
        assert module.weight.grad.is_sparse == expected.is_sparse
        torch.testing.assert_close(module.weight.grad.to_dense(), 2 * expected.to_dense())


def test_a_small_last_batch_runs_row_by_row() -> None:
    module, seen = nn.Linear(3, 1), []

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        seen.append(len(sample.args[0]))
        return mean_of_squares(module, sample)

    sample = Inputs((torch.randn(3, 3),))
    found = accumulated_loss(loss, 8)(module, sample)
    assert seen == [1, 1, 1]
    torch.testing.assert_close(found, mean_of_squares(module, sample))


def test_without_gradients_it_is_the_loss_of_the_whole_batch() -> None:
    module, sample = nn.Linear(3, 1), Inputs((torch.randn(4, 3),))
    with torch.no_grad():
        found = accumulated_loss(mean_of_squares, 2)(module, sample)
        assert torch.equal(found, mean_of_squares(module, sample))
    assert module.weight.grad is None
