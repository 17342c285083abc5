# the method is under no_grad
import torch
from torch import nn


class Pair(nn.Module):
    def __init__(self, query, key):
        super().__init__()
        self.query, self.key = query, key

    @torch.no_grad()
    def update(self, m):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.mul_(m).add_(q, alpha=1 - m)
