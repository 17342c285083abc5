# unique of the routing indices in forward
import torch
from torch import nn


class Switch(nn.Module):
    def __init__(self, dim, n):
        super().__init__()
        self.route = nn.Linear(dim, n)

    def forward(self, x: torch.Tensor):
        expert = self.route(x).argmax(-1)
        used, inverse = torch.unique(expert, return_inverse=True)  # expect: data-dependent-shape
        return used, inverse
