"""What a live subject is called in journals and reports."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from togi.worker.hand_over import handed_over


class Encoder(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)


ENCODER = Encoder().eval()


def pipeline(x: torch.Tensor) -> torch.Tensor:
    return ENCODER(x)


@pytest.mark.parametrize(
    ("subject", "name"), [(ENCODER, "Encoder"), (ENCODER.encode, "Encoder.encode"), (pipeline, "pipeline")]
)
def test_a_program_goes_by_what_is_called(subject: object, name: str) -> None:
    with handed_over(subject, torch.ones(2), {}) as (_, found):
        assert found == name
