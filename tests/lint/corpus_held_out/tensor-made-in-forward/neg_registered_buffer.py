# made once, registered as a buffer
import torch
from torch import nn


class Quantile(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.register_buffer("levels", torch.tensor([0.1, 0.5, 0.9]))

    def forward(self, x):
        return self.body(x).unsqueeze(-1) * self.levels
