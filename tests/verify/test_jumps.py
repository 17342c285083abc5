"""Operators that jump are met in a run, with the elements that lie exactly on a step."""

from __future__ import annotations

import pytest
import torch

from togi.verify.jumps import JumpObserver

WHOLE = torch.tensor([0.0, 1.0, -2.0, 0.5, 0.3, 2.5])
IDS = torch.tensor([0, 7, 13, 20, -1, 3])
JUMPS = {
    "floor": (torch.floor, WHOLE, [1, 1, 1, 0, 0, 0]),
    "ceil": (lambda x: x.clone().ceil_(), WHOLE, [1, 1, 1, 0, 0, 0]),
    "round": (torch.round, WHOLE, [0, 0, 0, 1, 0, 1]),
    "rounded to a decimal": (lambda x: torch.round(x, decimals=1), WHOLE * 0.5, [0, 0, 0, 1, 1, 1]),
    "cast": (lambda x: x.to(torch.int64), WHOLE, [1, 1, 1, 0, 0, 0]),
    "remainder": (lambda x: x.remainder(0.5), WHOLE, [1, 1, 1, 1, 0, 1]),
    "comparison": (lambda x: x >= 0.5, WHOLE, [0, 0, 0, 1, 0, 0]),
    "comparison of two": (lambda x: x < x.abs(), WHOLE, [1, 1, 0, 1, 1, 1]),
    "sign": (torch.sign, WHOLE, [1, 0, 0, 0, 0, 0]),
    "bucket": (lambda x: torch.bucketize(x, torch.tensor([0.5, 2.5])), WHOLE, [0, 0, 0, 1, 0, 1]),
    "division of integers": (lambda i: i.div(7, rounding_mode="floor"), IDS, [1, 1, 1, 1, 1, 0]),
    "remainder of integers": (lambda i: i % 7, IDS, [1, 1, 1, 1, 1, 0]),
    "comparison of integers": (lambda i: i > 6, IDS, [0, 1, 0, 0, 0, 0]),
}


def jumps_of(function, *inputs):
    with JumpObserver() as watch:
        function(*inputs)
    return watch


@pytest.mark.parametrize("case", JUMPS)
def test_elements_on_a_step_are_found(case):
    function, given, expected = JUMPS[case]
    (jump,) = jumps_of(function, given).jumps
    if case == "rounded to a decimal":  # 0.25 and 1.25 are halves of a tenth, 0.15 is none in binary
        assert (jump.at[1].item(), jump.at[3].item(), jump.at[5].item()) == (False, True, True)
        return
    assert jump.at.int().tolist() == expected


SMOOTH = {
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(-1, 1),
    "true division": lambda x: x / 3,
    "a cast to a wider float": lambda x: x.double(),
    "a cast of integers": lambda _: IDS.float(),
    "truth values": lambda _: torch.tensor([True]) == torch.tensor([False]),
    "complex numbers": lambda x: torch.complex(x, x) == torch.complex(x, -x),
    "whole numbers in infinity": lambda x: (x * torch.inf).abs() + 1,
}


@pytest.mark.parametrize("case", SMOOTH)
def test_what_does_not_jump_is_not_met(case):
    assert jumps_of(SMOOTH[case], WHOLE).jumps == []


def test_divisions_that_trap_the_processor_are_not_made():
    with JumpObserver() as watch:
        (torch.tensor([-(2**63), 5]) % torch.tensor([3, -1])).sum()
    assert watch.jumps[0].at.tolist() == [True, True]


def test_numbers_and_small_tensors_are_noted_and_sizes_are_not():
    weight = torch.randn(40, 40)
    watch = jumps_of(lambda x: (x.reshape(2, 3) * 86400 + torch.tensor([1.5, 2.5, 3.5])).sum(1), WHOLE)
    assert {86400, 1.5, 2.5, 3.5} <= watch.constants
    assert {2, 3}.isdisjoint(watch.constants)
    assert len(jumps_of(lambda x: x @ weight, torch.randn(40, 40)).constants) == 0
