"""Where an engine's time goes: every operation is counted, and multiplications as the definition has them."""

from __future__ import annotations

import pytest
import torch
from benchmarks import operations
from torch import nn

FLOPS_PER_S, BYTES_PER_S = 1e9, 1e30
"""So that the limit of an operation tells its multiplications."""


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(32 * 16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.convolution(x).flatten(1))


@pytest.mark.parametrize("recipe", ["openvino + no_grad", "onnxruntime(spinning=False) + no_grad"])
def test_the_operations_of_an_engine_are_those_of_the_model(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations.models, "both", lambda: (Both(), torch.randn(2, 3, 16, 16)), raising=False)
    row = operations.profile("both", recipe, (FLOPS_PER_S, BYTES_PER_S))
    assert sum(kind.share for kind in row.kinds) == pytest.approx(1)
    assert sum(kind.ms for kind in row.kinds) == pytest.approx(row.engine_ms)
    flops = [(kind.kind, round(kind.limit_ms * FLOPS_PER_S / 1e3)) for kind in row.kinds]
    convolution, linear = 2 * 2 * 32 * 16 * 16 * 27, 2 * 2 * 10 * 32 * 16 * 16
    assert ("convolution 3x3", convolution) in flops
    assert sum(count for _, count in flops) == convolution + linear
    assert "convolution 3x3 (1)" in operations.table([operations.asdict(row)])


def test_a_recipe_is_read_from_its_label() -> None:
    label = "fold_batch_norm + onnxruntime(opset=23, spinning=True) + no_grad"
    assert operations.recipe_of(label).label == label
    assert operations.recipe_of(label).choices[1].options == {"opset": 23, "spinning": True}
