# made on the first call and kept
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim: int, length: int):
        super().__init__()
        inv = 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim)
        angles = torch.outer(torch.arange(length).float(), inv)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.size(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos[:n] - b * self.sin[:n], b * self.cos[:n] + a * self.sin[:n]], -1)
