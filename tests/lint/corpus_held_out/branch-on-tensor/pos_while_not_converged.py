# while with a tensor condition: one wait per iteration
import torch
from torch import nn


class DEQ(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.f = nn.Linear(dim, dim)

    def forward(self, x):
        z = torch.zeros_like(x)
        delta = torch.full((), float("inf"), device=x.device)
        while delta > 1e-3:  # expect: branch-on-tensor
            new = torch.tanh(self.f(z) + x)
            delta = (new - z).norm()
            z = new
        return z
