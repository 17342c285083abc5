# a sinusoidal table made with NumPy becomes float64
import numpy as np
import torch
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self, length: int, dim: int):
        super().__init__()
        angle = np.array([[p / 10000 ** (2 * (i // 2) / dim) for i in range(dim)] for p in range(length)])
        angle[:, 0::2] = np.sin(angle[:, 0::2])
        angle[:, 1::2] = np.cos(angle[:, 1::2])
        self.register_buffer("table", torch.from_numpy(angle))  # expect: float64-by-accident

    def forward(self, x):
        return x + self.table[: x.size(1)]
