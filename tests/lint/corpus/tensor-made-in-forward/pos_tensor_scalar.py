# a constant is turned into a tensor in each call
import torch
from torch import nn


class Focal(nn.Module):
    def __init__(self, alpha: list[float]):
        super().__init__()
        self.alpha = alpha

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weights = torch.tensor(self.alpha, device=logits.device)  # expect: tensor-made-in-forward
        return nn.functional.cross_entropy(logits, labels, weight=weights)
