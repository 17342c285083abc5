# moved once, when the object is made
import torch
from torch import nn


class Codebook(nn.Module):
    def __init__(self, entries: int, dim: int, device: torch.device):
        super().__init__()
        table = torch.randn(entries, dim).to(device)
        self.register_buffer("table", table)

    def forward(self, z):
        distance = torch.cdist(z, self.table)
        return distance.argmin(-1)
