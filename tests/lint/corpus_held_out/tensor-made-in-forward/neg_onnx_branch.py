# the constant exists only while exporting
import torch
from torch import nn


class Resize(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.onnx.is_in_onnx_export():
            x = x * torch.tensor([1.0, 1.0])
        return nn.functional.interpolate(x, size=(self.size, self.size))
