# a scripted submodule inside a model
import torch
from torch import nn


class Wrapper(nn.Module):
    def __init__(self, cell: nn.Module):
        super().__init__()
        self.cell = torch.jit.script(cell)  # expect: torchscript

    def forward(self, x):
        return self.cell(x)
