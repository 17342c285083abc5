# PyTorch's regional compilation: each layer of a deep model is made, compiled and kept
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList([torch.compile(Layer()) for _ in range(depth)])
        self.heads = nn.ModuleList()
        for _ in range(4):
            self.heads.append(torch.compile(nn.Linear(64, 10)))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
