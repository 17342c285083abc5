"""A tensor whose values are elsewhere: whoever reads or writes it sees what it always saw, or is told why not."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor, nn

from togi.torch_internals.deferred import Deferred

NUMBERS = torch.arange(6.0).view(2, 3)


class There:
    """Where the values are."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fetched = 0

    def fetch(self) -> Tensor:
        self.fetched += 1
        return NUMBERS.clone()


def made() -> Deferred:
    tensor: Deferred = Deferred((2, 3), torch.float32, There())
    return tensor


@pytest.mark.parametrize("inference", [False, True])
def test_values_are_fetched_once_and_it_is_known_when_they_were_handed_out(inference: bool) -> None:
    with torch.inference_mode(inference):
        tensor = made()
        assert isinstance(tensor, Tensor)
        assert (tensor.shape, tensor.dtype, tensor.device.type, tensor.numel()) == ((2, 3), torch.float32, "cpu", 6)
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
        there = tensor.place
        assert isinstance(there, There)
        assert not there.fetched
        for read in (torch.neg, Tensor.clone, lambda one: one.tolist(), lambda one: torch.cat([one, one])):
            assert type(read(tensor)) in (Tensor, list)
        assert there.fetched == 1
        assert tensor.place is there
        assert type(nn.functional.linear(tensor, torch.ones(4, 3))) is Tensor
        for hand_out in (lambda one: one[0], Tensor.detach, Tensor.t, lambda one: one.numpy(), Tensor.zero_):
            tensor = made()
            hand_out(tensor)
            assert tensor.place is None
        tensor = made()
        tensor[0, 0] = 5.0
        tensor += 1
        assert tensor.tolist() == [[6.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
        assert "6." in repr(made().add(1))


@pytest.mark.parametrize("born", [False, True])
@pytest.mark.parametrize("looked_at", [False, True])
def test_it_is_of_the_mode_that_it_was_made_in(born: bool, looked_at: bool) -> None:
    """Not of the one in which somebody first looked: what lives outside of inference_mode may be trained with."""
    with torch.inference_mode(born):
        tensor = made()
    with torch.inference_mode(looked_at):
        tensor.sum()
    assert [each.is_inference() for each in (tensor, tensor.detach(), tensor[0])] == [born] * 3
    if not born:
        weight, kept = torch.ones(2, 3, requires_grad=True), tensor.detach()
        (kept * weight).sum().backward()
        assert weight.grad is not None
        assert torch.equal(weight.grad, NUMBERS)
        kept.mul_(2.0)
        assert torch.equal(tensor + 0, 2 * NUMBERS)


@pytest.mark.parametrize(
    "write",
    [
        lambda one: torch.neg(-2 * NUMBERS, out=one),
        lambda one: torch.add(one, one, out=one),
        lambda one: torch.max(torch.stack([NUMBERS, 2 * NUMBERS]), 0, out=(one, torch.empty(0, dtype=torch.int64))),
        lambda one: one.apply_(lambda value: 2 * value),
        lambda one: setattr(one, "data", 2 * NUMBERS),
        lambda one: one.data.mul_(2.0),
        lambda one: torch.from_dlpack(one).mul_(2.0),
        lambda one: one.untyped_storage().copy_((2 * NUMBERS).untyped_storage()),
        lambda one: torch._foreach_mul_([one], 2.0),
        lambda one: one.detach_().mul_(2.0),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_is_written_by_any_way_is_read(write, inference: bool) -> None:
    for looked_at in (False, True):
        with torch.inference_mode(inference):
            tensor = made()
            if looked_at:
                tensor.sum()
            write(tensor)
            assert tensor.place is None
            assert torch.equal(tensor + 0, 2 * NUMBERS)


@pytest.mark.parametrize(
    "write",
    [
        lambda one: torch.cat([NUMBERS, NUMBERS], out=one),
        lambda one: torch.neg(NUMBERS[0], out=one),
        lambda one: torch.max(torch.ones(4, 4), 1, out=(one, torch.empty(0, dtype=torch.int64))),
        lambda one: setattr(one, "data", torch.ones(4)),
        lambda one: setattr(one, "data", NUMBERS.double()),
        lambda one: setattr(one, "data", torch.ones(3, 2).t()),
        lambda one: one.set_(torch.ones(4)),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_would_have_another_form_is_refused_and_changes_nothing(write, inference: bool) -> None:
    with torch.inference_mode(inference):
        tensor = made()
        with pytest.raises(RuntimeError, match="which one that an engine keeps cannot have"):
            write(tensor)
        assert (tensor.shape, tensor.dtype) == ((2, 3), torch.float32)
        assert torch.equal(tensor + 0, NUMBERS)


def test_it_can_be_swapped_with_another_tensor() -> None:
    swapped, other = made(), torch.ones(4)
    torch.utils.swap_tensors(swapped, other)
    assert type(swapped) is Tensor
    assert torch.equal(swapped + 0, torch.ones(4))
    assert torch.equal(other + 0, NUMBERS)


def test_memory_that_it_does_not_have_is_never_read() -> None:
    """C code that asks nobody would end the process: in one of its own."""
    code = """
import threading
import torch
from togi.torch_internals.deferred import Deferred

class There:
    lock = threading.RLock()
    def fetch(self):
        return torch.ones(2, 3)

def into(tensor):
    other = torch.zeros(2, 3)
    other.data = tensor
    return other + 0

looks = [
    lambda one: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(one)) + 0,
    lambda one: torch.Tensor.apply_(one, abs),
    torch.Tensor.data_ptr,
    into,
]
for look in looks:
    tensor = Deferred((2, 3), torch.float32, There())
    try:
        found = look(tensor)
    except RuntimeError as error:
        assert "the values of this tensor are kept by an engine" in str(error), error
    else:
        raise AssertionError(found)
    assert torch.equal(tensor + 0, torch.ones(2, 3))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)
