# type_as of a tensor that was made on the device
import torch
from torch import nn


class Smooth(nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        hot = torch.zeros_like(logits).scatter(1, target.unsqueeze(1), 1.0)
        hot = hot * (1 - self.eps) + self.eps / logits.size(1)
        weight = hot.sum(0).type_as(logits)
        return -(hot.to(logits.dtype) * logits.log_softmax(1)).sum(1).mean() + 0 * weight.sum()
