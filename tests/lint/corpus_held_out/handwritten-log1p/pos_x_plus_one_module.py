# the one may stand behind
import torch
from torch import nn


class LogScale(nn.Module):
    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        return torch.log(counts + 1) / 2  # expect: handwritten-log1p
