# a constant kept as a plain attribute instead of a buffer
import torch
from torch import nn


class Normalize(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.mean = torch.tensor(mean).view(1, -1, 1, 1)
        self.std = torch.tensor(std).view(1, -1, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.mean.to(x.device)  # expect: copy-to-device-in-forward
        std = self.std.to(x.device)  # expect: copy-to-device-in-forward
        return (x - mean) / std
