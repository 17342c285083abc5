# forward reads the longest length back to the host
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        longest = int(lengths.max())  # expect: scalar-from-tensor
        x = x[:, :longest]
        return self.proj(x)
