# a helper method that forward calls decides on values
import torch
from torch import nn


class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("limit", torch.ones(()))

    def _clip(self, x: torch.Tensor) -> torch.Tensor:
        peak = x.abs().amax()
        if peak > self.limit:  # expect: branch-on-tensor
            x = x * (self.limit / peak)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._clip(x)
