"""OpenVINO's outputs are lent without a copy, and nobody's are overwritten while he holds them."""

from __future__ import annotations

import threading

import pytest
import torch
from engine_subjects import made
from torch import nn

from togi.techniques import conformance
from togi.techniques.engine.programs import openvino


class Returns(nn.Module):
    """(n, 4) -> a result, one whose size follows, the input itself, a constant, and a weight."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 64)

    def forward(self, x):
        return self.linear(x), self.linear(x).relu().reshape(-1), x, self.linear.weight * 2, self.linear.weight


def varying():
    return conformance.candidate_of(Returns(), [torch.randn(2, 4), torch.randn(5, 4)])


def fixed():
    return conformance.candidate_of(Returns(), [torch.randn(3, 4)])


def sizes(candidate):
    return [3] if None not in candidate.signature.inputs_facts[0].shape else [2, 5, 1, 9]


def check(held):
    for found, expected in held:
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted)


def call(program, module, size):
    sample = torch.randn(size, 4)
    with torch.no_grad():
        return program(sample), [tensor.clone() for tensor in module(sample)]


@pytest.mark.parametrize("make", [varying, fixed])
def test_outputs_that_are_held_stay_as_they_are(make):
    candidate = make()
    program, _ = openvino.build(candidate)
    held = [call(program, candidate.module, size) for _ in range(4) for size in sizes(candidate)]
    del held[1]
    held += [call(program, candidate.module, size) for size in sizes(candidate)]
    check(held)
    del program
    check(held)


@pytest.mark.parametrize("make", [varying, fixed])
def test_what_is_written_into_an_output_reaches_no_later_call(make):
    candidate = make()
    program, _ = openvino.build(candidate)
    for size in sizes(candidate) * 2:
        found, expected = call(program, candidate.module, size)
        check([(found, expected)])
        for tensor in found[:2] + found[3:]:
            tensor.fill_(7.0)
        del found


def test_threads_do_not_share_outputs():
    candidate = varying()
    program, _ = openvino.build(candidate)
    failed = []

    def work():
        held = []
        try:
            for size in sizes(candidate) * 4:
                held = [*held[-2:], call(program, candidate.module, size)]
                check(held)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_memory_that_was_let_go_of_is_used_again():
    """No copy, and no fresh memory: a view alone keeps it from being used again."""
    program, _ = openvino.build(made("convolutions"))
    sample = torch.randn(2, 3, 8, 8)
    first = program(sample)
    place = first.data_ptr()
    del first
    again = program(sample)
    assert again.data_ptr() == place
    view = again[0, :2]
    del again
    assert program(sample).data_ptr() != place
    del view
    assert program(sample).data_ptr() == place
