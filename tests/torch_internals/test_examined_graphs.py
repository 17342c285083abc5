"""What keeps a graph from being replayed is found at its line, without a GPU."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import Tensor

from togi.torch_internals import examined_graphs
from togi.torch_internals.examined_graphs import Examined, examining_backend


def test_a_write_into_an_input_of_a_training_step_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU taken for a GPU: AOTAutograd leaves such writes without a line there and here."""
    monkeypatch.setattr(examined_graphs, "_gpus", lambda _: [torch.device("cpu")])
    layer, found = torch.nn.Linear(4, 4), Examined()

    def step(x: Tensor, cache: Tensor) -> Tensor:
        cache.add_(1)
        return (layer(x) + cache).sum()

    with torch._dynamo.config.patch(suppress_errors=False):
        torch.compile(step, backend=examining_backend(found))(torch.ones(3, 4), torch.zeros(4)).backward()
    (write,) = (one for graph in found.graphs for one in graph.obstacles if one.cause == "mutated input")
    assert write.stack.rstrip().endswith("cache.add_(1)")
