# slices, integers and index tensors keep the size known
import torch
from torch import nn


class Shift(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.register_buffer("index", torch.randperm(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x[:, 0]
        rest = x[:, 1:, ::2]
        mixed = x[:, self.index]
        return first.sum() + rest.mean() + mixed.amax() + x[..., None].mean()
