# assert on tensor values in forward
import torch
from torch import nn


class Embed(nn.Module):
    def __init__(self, size: int, dim: int):
        super().__init__()
        self.size = size
        self.table = nn.Embedding(size, dim)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        assert ids.max() < self.size, "index out of range"  # expect: branch-on-tensor
        return self.table(ids)
