# one-argument where returns indices, like nonzero
import torch
from torch import nn


class Peaks(nn.Module):
    def forward(self, heat: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.max_pool2d(heat, 3, stride=1, padding=1)
        b, c, y, x = torch.where(pooled == heat)  # expect: data-dependent-shape
        return torch.stack([b, c, y, x], dim=1)
