# quantization by a codebook
import torch
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, entries, dim):
        super().__init__()
        self.codebook = nn.Embedding(entries, dim)

    def quantize(self, z):
        return torch.cdist(z, self.codebook.weight).argmin(-1)

    def forward(self, z):
        z_q = self.codebook(self.quantize(z))
        return z + (z_q - z).detach()
