"""Numbers that JSON has no form for stand in an exported program as text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from togi.techniques.conformance import candidate_of
from togi.techniques.registry import technique


class Filled(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(mask, self.value)


@pytest.mark.parametrize("value", [float("-inf"), float("inf"), float("nan"), 1.5])
def test_a_constant_of_any_value_comes_back(value: float, tmp_path: Path) -> None:
    x, mask = torch.randn(2, 4), torch.eye(2, 4, dtype=torch.bool)
    candidate = candidate_of(Filled(value), [(x, mask)])
    eager = technique("eager")
    meta = eager.apply(candidate, {}).program.save(tmp_path)
    loaded = eager.load(tmp_path, meta, candidate.signature, None)
    torch.testing.assert_close(loaded(x, mask), candidate.module(x, mask), equal_nan=True)
