"""Four small modules on which engines, options and numbers are tried."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from togi.graph.candidate import Candidate
from togi.machine.describe import machine
from togi.subject.inputs import Subject
from togi.techniques.build import first_candidate
from togi.verify.reference import make_truth
from togi.verify.truth import Truth
from togi.worker.survey import survey


class Convolutions(nn.Module):
    """So large that cuDNN takes its kernels for matrix units, and with them TensorFloat-32 where that is allowed: on an
    H100 it took others for 32 channels of 32 x 32 in their usual layout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).flatten(1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection, self.norm = nn.Linear(32, 96), nn.LayerNorm(32)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        query, key, value = self.projection(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        hidden = self.norm(x + attended.transpose(1, 2).flatten(2))
        return {"hidden": hidden, "pooled": (hidden * mask.unsqueeze(-1)).sum(1)}


MODULES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "perceptron": lambda: (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), (torch.randn(4, 32),)),
    "convolutions": lambda: (Convolutions(), (torch.randn(16, 64, 56, 56),)),
    "attention": lambda: (Attention(), (torch.randn(2, 6, 32), torch.ones(2, 6))),
    "recurrent": lambda: (nn.LSTM(8, 16, batch_first=True), (torch.randn(2, 5, 8),)),
}


def subject_of(name: str, device: str) -> tuple[Candidate, Truth]:
    torch.manual_seed(0)
    module, inputs = MODULES[name]()
    subject = Subject(module.eval(), [inputs, tuple(tensor * 2 for tensor in inputs)])
    found = survey(subject, device=device, machine=machine(device))
    candidate = first_candidate(subject, found.facts, found.signature)
    truth = make_truth(candidate.module, candidate.samples, found.signature, seed=0, samples=2, device=device)
    return candidate, truth
