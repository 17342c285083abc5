"""Calls run in inference mode, and only where nothing of it stays behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from togi.techniques import Refuses, compatible, conformance, technique
from togi.techniques.runtime.inference_mode import InferenceMode


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x + self.calls


def test_outputs_are_inference_tensors():
    start = conformance.candidate_of(nn.Linear(2, 2), [torch.randn(1, 2)])
    output = InferenceMode().apply(start, {}).runnable()(torch.randn(1, 2))
    assert output.is_inference()
    assert not torch.is_inference_mode_enabled()


def test_it_refuses_a_module_that_changes_a_buffer():
    facts = conformance.candidate_of(Counter(), [torch.zeros(1)]).facts
    assert facts.buffers_change
    assert isinstance(InferenceMode().applies(facts), Refuses)


def test_it_stands_in_place_of_no_grad():
    assert not compatible([technique("inference_mode"), technique("no_grad")])
    assert compatible([technique("inference_mode")])


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "ncnn", "torch_tensorrt"])
def test_it_is_not_tried_round_an_engine_that_computes_outside_of_torch(engine):
    assert not compatible([technique("inference_mode"), technique(engine)])
    assert compatible([technique("no_grad"), technique(engine)])


@pytest.mark.parametrize("engine", ["eager", "torchscript", "torch_compile", "aot_inductor", "cuda_graph"])
def test_it_is_tried_round_an_engine_that_calls_torch(engine):
    assert compatible([technique("inference_mode"), technique(engine)])


def test_conformance():
    conformance.check(InferenceMode(), [lambda: conformance.candidate_of(nn.Linear(2, 2), [torch.randn(1, 2)])])
