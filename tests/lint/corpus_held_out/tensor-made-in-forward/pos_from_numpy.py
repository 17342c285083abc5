# NumPy table turned into a tensor and copied in forward
import numpy as np
import torch
from torch import nn


class Sinusoid(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = np.arange(x.size(1), dtype=np.float32)[:, None] / np.ones((1, self.dim), dtype=np.float32)
        table = torch.from_numpy(np.sin(angles))  # expect: tensor-made-in-forward
        return x + table.to(x.device)  # allow: copy-to-device-in-forward
