# the branch exists only for tracing to ONNX
import torch
from torch import nn


class Anchors(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, stride: torch.Tensor) -> torch.Tensor:
        if torch.onnx.is_in_onnx_export():
            step = int(stride.max())
            x = x[..., ::step]
        return x * self.scale.mean()
