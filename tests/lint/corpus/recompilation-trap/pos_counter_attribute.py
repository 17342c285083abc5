# an integer attribute of a compiled module changes with each call
import torch
from torch import nn


class Warmup(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.fc = nn.Linear(dim, dim)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1  # expect: recompilation-trap+1
        return self.fc(x) * min(1.0, self.calls / 1000)


def train(loader, step):
    model = torch.compile(Warmup(64))
    for batch in loader:
        step(model, batch)
