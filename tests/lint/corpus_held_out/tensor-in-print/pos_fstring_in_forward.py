# debugging output left in forward prints a tensor
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        g = torch.sigmoid(self.w(x))
        print(f"gate mean {g.mean()}")  # expect: tensor-in-print
        return x * g
