# the input may come from anywhere: multi-device models move it between their parts
import torch
from torch import nn


class TwoDevices(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first = first.to("cuda:0")
        self.second = second.to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return self.second(h.to("cuda:1"))
