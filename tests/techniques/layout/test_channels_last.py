"""Weights and activations change their layout; nothing that the caller sees does."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import nn

from togi.core.errors import Refused
from togi.graph.capture import GraphModule, capture
from togi.techniques import Refuses, conformance
from togi.techniques.layout.channels_last import ChannelsLast
from togi.techniques.layout.channels_last_3d import ChannelsLast3d
from togi.techniques.memory_format import order_of
from togi.techniques.rewrite.fold_batch_norm import FoldBatchNorm

LAST = ChannelsLast()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def changed(module, *samples, technique=LAST):
    original = conformance.candidate_of(module, list(samples))
    return original, technique.apply(original, {})


class Seen(nn.Module):
    """Records the layout of what its convolution is given."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.layouts = []

    def forward(self, x):
        self.layouts.append(x.is_contiguous(memory_format=torch.channels_last))
        return self.conv(x)


def test_the_convolution_runs_in_the_format_and_the_caller_sees_contiguous_memory():
    sample = torch.randn(2, 3, 8, 8)
    original, result = changed(Seen(), sample)
    inner = result.module.module
    assert inner.conv.weight.is_contiguous(memory_format=torch.channels_last)
    output = result.module(sample)
    assert inner.layouts[-1]
    assert output.is_contiguous()
    torch.testing.assert_close(output, original.module(sample))
    assert sample.is_contiguous()


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050"])
def test_real_architectures_stay_faithful(name):
    def build():
        return conformance.candidate_of(timm.create_model(name), [torch.randn(2, 3, 32, 32)])

    conformance.check_application(LAST, build(), {})


class Orders(nn.Module):
    """Outputs in several orders of dimensions, of several ranks, and one that is an input."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        y = self.conv(x)
        last = y.permute(0, 2, 3, 1)
        return {"image": y, "last": last, "tokens": y.flatten(2).transpose(1, 2), "vector": y.mean((2, 3)), "x": x}


def test_every_output_has_the_order_of_dimensions_it_had():
    sample = torch.randn(2, 3, 8, 9)
    original, result = changed(Orders(), sample)
    wanted, got = original.module(sample), result.module(sample)
    assert list(wanted) == list(got)
    for name in wanted:
        assert wanted[name].stride() == got[name].stride(), name
        torch.testing.assert_close(got[name], wanted[name])


class Views(nn.Module):
    """Code that only runs on contiguous memory."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8 * 36, 4)

    def forward(self, x):
        y = self.norm(self.conv(x)).relu_()
        return self.head(y.view(y.shape[0], -1))


def test_code_that_needs_contiguous_memory_is_captured():
    sample = torch.randn(2, 3, 8, 8)
    original, result = changed(Views(), sample)
    assert any("captured" in note for note in result.notes)
    torch.testing.assert_close(result.module(sample), original.module(sample))


def test_it_follows_a_rewrite():
    sample = torch.randn(2, 3, 8, 8)
    original = conformance.candidate_of(Views(), [sample])
    result = LAST.apply(FoldBatchNorm().apply(original, {}), {})
    torch.testing.assert_close(result.module(sample), original.module(sample))


def test_a_captured_graph_changes_its_layout():
    sample = torch.randn(2, 3, 8, 8)
    original = conformance.candidate_of(nn.Conv2d(3, 8, 3), [sample])
    graph = original.with_(module=GraphModule(capture(original), original.signature))
    result = LAST.apply(graph, {})
    (weight,) = (p for p in result.module.parameters() if p.dim() == 4)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert original.module.weight.is_contiguous()
    torch.testing.assert_close(result.module(sample), original.module(sample))


def test_the_result_can_be_copied_traced_exported_and_runs_at_other_sizes():
    samples = [torch.randn(2, 3, 8, 8), torch.randn(3, 3, 10, 10)]
    original, result = changed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), *samples)
    other = torch.randn(1, 3, 14, 14)
    wanted = original.module(other)
    torch.testing.assert_close(result.module(other), wanted)
    torch.testing.assert_close(copy.deepcopy(result.module)(other), wanted)
    torch.testing.assert_close(torch.jit.trace(result.module, (samples[0],))(other), wanted)
    torch.testing.assert_close(capture(result)(other)[0], wanted)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_model_without_such_weights_is_refused():
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    original = conformance.candidate_of(module, [torch.randn(1, 3, 2, 2)])
    assert isinstance(LAST.applies(original.facts), Refuses)
    with pytest.raises(Refused, match="no weight"):
        LAST.apply(original, {})


def test_a_model_in_this_format_is_refused():
    module = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    with pytest.raises(Refused, match="no weight"):
        changed(module, torch.randn(1, 3, 8, 8))


def test_three_dimensions():
    sample = torch.randn(1, 3, 5, 6, 7)
    original, result = changed(nn.Conv3d(3, 4, 3), sample, technique=ChannelsLast3d())
    assert result.module.module.weight.is_contiguous(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(result.module(sample), original.module(sample))
    assert result.module(sample).is_contiguous()


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (torch.empty(2, 3, 4, 5), (0, 1, 2, 3)),
        (torch.empty(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), (0, 2, 3, 1)),
        (torch.empty(2, 1, 4, 5).permute(0, 2, 3, 1), (0, 1, 2, 3)),
        (torch.empty(3, 1).t(), (0, 1)),
        (torch.empty(()), ()),
    ],
)
def test_order_of_dimensions(tensor, order):
    assert order_of(tensor) == order


@pytest.mark.parametrize("technique", [LAST, ChannelsLast3d()], ids=lambda t: t.id)
def test_conformance(technique):
    layer, size = (nn.Conv2d, (2, 3, 6, 6)) if technique is LAST else (nn.Conv3d, (2, 3, 5, 5, 5))
    builders = [
        lambda: conformance.candidate_of(layer(3, 4, 3), [torch.randn(size)]),
        lambda: conformance.candidate_of(nn.Linear(3, 3), [torch.randn(1, 3)]),
    ]
    conformance.check(technique, builders)
