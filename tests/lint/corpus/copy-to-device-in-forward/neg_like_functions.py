# *_like and new_* inherit the device
import torch
from torch import nn


class Dropblock(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keep = torch.rand_like(x) > 0.1
        ones = x.new_ones(x.size(0), 1, 1, 1)
        pad = x.new_zeros(1)
        return torch.where(keep, x * ones, torch.zeros_like(x)) + pad
