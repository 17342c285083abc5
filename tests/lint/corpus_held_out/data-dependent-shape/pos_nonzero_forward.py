# the number of anchors depends on values: the host has to wait for it
import torch
from torch import nn


class Proposals(nn.Module):
    def __init__(self, threshold: float):
        super().__init__()
        self.threshold = threshold

    def forward(self, scores: torch.Tensor, boxes: torch.Tensor):
        keep = torch.nonzero(scores > self.threshold).squeeze(1)  # expect: data-dependent-shape
        return boxes.index_select(0, keep)
