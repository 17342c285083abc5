# the rates are computed once, on the CPU, when the model is made
import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self, depth: int = 12, drop_path_rate: float = 0.1) -> None:
        super().__init__()
        rates = [r.item() for r in torch.linspace(0, drop_path_rate, depth)]
        self.blocks = nn.ModuleList(nn.Dropout(rate) for rate in rates)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
