# mean and standard deviation built in each forward
import torch
from torch import nn


class Perceptual(nn.Module):
    def __init__(self, vgg: nn.Module):
        super().__init__()
        self.vgg = vgg

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = torch.tensor([0.485, 0.456, 0.406], device=x.device).view(1, 3, 1, 1)  # expect: tensor-made-in-forward
        std = torch.tensor([0.229, 0.224, 0.225], device=x.device).view(1, 3, 1, 1)  # expect: tensor-made-in-forward
        return self.vgg((x - mean) / std)
