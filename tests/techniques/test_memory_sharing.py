# ruff: noqa: ARG005 - every function here takes the input and a buffer
"""Who shares memory and who writes it, as PyTorch does it when the graph runs."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from togi.graph.aliasing import MemorySharing
from togi.graph.capture import capture
from togi.techniques import conformance


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x):
        return self.function(x, self.state)


def nodes(function):
    graph = capture(conformance.candidate_of(Call(function), [torch.randn(4, 4)])).graph
    named = {str(node.target).removeprefix("aten.").partition(".")[0]: node for node in graph.nodes}
    return MemorySharing(graph), named


class _Pointers(fx.Interpreter):
    """Runs a graph and notes where each value lies."""

    def __init__(self, module):
        super().__init__(module, garbage_collect_values=False)
        self.at = {}

    def run_node(self, node):
        value = super().run_node(node)
        if isinstance(value, torch.Tensor):
            self.at[node] = value.untyped_storage().data_ptr()
        return value


def views(x, state):
    a = (x * 2).reshape(2, 8).transpose(0, 1)[1:].unsqueeze(0)
    b, c = x.exp().chunk(2)
    d = torch.nn.functional.pad(b, (0, 1))
    e = x.tanh().flatten().view(4, 4).expand(2, 4, 4).contiguous()
    return a.relu(), b.add_(1.0), c + state, d, e.squeeze(), x.softmax(-1).t(), x.sin().clone().t()


def test_values_that_lie_together_when_it_runs_are_known_to():
    module = capture(conformance.candidate_of(Call(views), [torch.randn(4, 4)]))
    memory, running = MemorySharing(module.graph), _Pointers(module)
    running.run(torch.randn(4, 4))
    pairs = [(a, b) for a in running.at for b in running.at if a is not b and running.at[a] == running.at[b]]
    assert pairs
    assert all(memory.share(a, b) for a, b in pairs)
    assert not memory.share(*[node for node in module.graph.nodes if node.op == "placeholder"], _named(module, "sin"))


def _named(module, name):
    return next(node for node in module.graph.nodes if f".{name}." in str(node.target))


def test_a_write_through_a_view_is_a_write_to_what_it_views():
    memory, named = nodes(lambda x, state: (lambda y: (y[1:].add_(1.0), y.sum()))(x.tanh()))
    assert memory.writers(named["tanh"]) == [named["add_"]]
    assert memory.written_between(named["tanh"], named["tanh"], named["sum"])
    assert not memory.written_between(named["tanh"], named["add_"], named["sum"])


def test_a_buffer_that_is_written_is_known():
    memory, _ = nodes(lambda x, state: x + state.add_(1.0))
    assert [node.op for node in memory.written_attributes()] == ["get_attr"]
    memory, _ = nodes(lambda x, state: x + state)
    assert memory.written_attributes() == []


@pytest.mark.parametrize(
    ("function", "private"),
    [
        (lambda x, state: x.tanh().relu_(), True),
        (lambda x, state: x.tanh().add_(1.0).relu_(), True),
        (lambda x, state: x.relu_(), False),
        (lambda x, state: x[1:].relu_(), False),
        (lambda x, state: (lambda y: (y[:2].sum(), y.relu_()))(x.tanh()), False),
        (lambda x, state: state.clone().relu_(), True),
    ],
)
def test_memory_that_only_the_writer_sees(function, private):
    memory, named = nodes(function)
    assert memory.private(named["relu_"].args[0]) == private
