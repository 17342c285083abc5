# small NumPy grids when a module is built
import numpy as np
import torch
from torch import nn


class RelativeBias(nn.Module):
    def __init__(self, window: int, heads: int):
        super().__init__()
        coords = np.stack(np.meshgrid(np.arange(window), np.arange(window), indexing="ij")).reshape(2, -1)
        relative = coords[:, :, None] - coords[:, None, :]
        index = relative[0] * (2 * window - 1) + relative[1] + 2 * window * (window - 1)
        self.register_buffer("index", torch.from_numpy(index))
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))

    def forward(self, scores):
        return scores + self.table[self.index].permute(2, 0, 1)
