# an integer repeat has a known size
import torch
from torch import nn


class GQA(nn.Module):
    def __init__(self, groups: int):
        super().__init__()
        self.groups = groups

    def forward(self, k: torch.Tensor, n: torch.Tensor):
        k = k.repeat_interleave(self.groups, dim=1)
        k = torch.repeat_interleave(k, 2, dim=0)
        return torch.repeat_interleave(k, n, dim=2, output_size=k.size(1) * 4)
