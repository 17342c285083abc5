"""Calls run in inference mode, and only where nothing of it stays behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from togi.graph.candidate import in_contexts
from togi.techniques import Refuses, compatible, conformance, technique
from togi.techniques.runtime.inference_mode import InferenceMode


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x + self.calls


def test_outputs_are_ordinary_tensors():
    """Callers write to what they are given, and record it."""
    seen = []

    class Two(nn.Module):
        def forward(self, x):
            seen.append(torch.is_inference_mode_enabled())
            y = x + 1
            return {"y": y, "again": (y, y.t())}, x

    x = torch.randn(1, 2)
    candidate = conformance.candidate_of(Two(), [x])
    call = InferenceMode().apply(candidate, {}).runnable()
    seen.clear()
    output, given = call(x)
    assert (seen, torch.is_inference_mode_enabled()) == ([True], False)
    assert given is x
    again, turned = output["again"]
    assert again is output["y"]
    output["y"].mul_(2)
    assert torch.equal(turned, (2 * (x + 1)).t())
    (again * torch.ones(1, 2, requires_grad=True)).sum().backward()
    with torch.inference_mode():
        assert call(x)[0]["y"].is_inference()


def test_what_a_call_fills_stays_the_list_that_it_is():
    def fill(x, cache):
        cache["keys"].append(x + 1)
        return cache

    cache = {"keys": []}
    output = in_contexts(fill, [torch.inference_mode])(torch.ones(2), cache)
    assert output is cache
    assert output["keys"] is cache["keys"]
    cache["keys"][0].add_(1)


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
