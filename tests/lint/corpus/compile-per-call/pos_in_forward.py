# compiled at each forward
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        body = torch.compile(self.body)  # expect: compile-per-call|recompilation-trap
        return body(x)
