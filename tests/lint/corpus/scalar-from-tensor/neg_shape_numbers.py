# sizes are Python numbers, int() of them is free
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self, ratio: float):
        super().__init__()
        self.ratio = ratio

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, w = x.shape[-2:]
        keep = int(h * self.ratio) * int(w * self.ratio)
        scale = float(x.size(1)) ** -0.5
        flat = x.flatten(2)[..., :keep]
        return flat * scale
