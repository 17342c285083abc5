# arange on the device is a kernel, not a copy
import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self, length: int, dim: int):
        super().__init__()
        self.table = nn.Embedding(length, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index = torch.arange(x.size(1), device=x.device)
        mask = torch.full((x.size(1), x.size(1)), float("-inf"), device=x.device).triu(1)
        return self.table(index) + x + mask.sum() * 0
