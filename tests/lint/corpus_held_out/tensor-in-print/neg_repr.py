# __repr__ and extra_repr are not hot
import torch
from torch import nn


class LayerScale(nn.Module):
    def __init__(self, dim: int, init: float = 1e-5) -> None:
        super().__init__()
        self.gamma = nn.Parameter(init * torch.ones(dim))

    def forward(self, x):
        return x * self.gamma

    def __repr__(self):
        return f"LayerScale(gamma={self.gamma.mean():.2e})"
