# shapes and types live on the host
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        print("block", x.shape, y.dtype, f"{y.size(0)} on {y.device}")
        return y
