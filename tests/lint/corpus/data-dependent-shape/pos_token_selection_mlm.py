# only masked tokens go through the head: the number is data
import torch
from torch import nn


class MaskedHead(nn.Module):
    def __init__(self, dim, vocab):
        super().__init__()
        self.decoder = nn.Linear(dim, vocab)

    def forward(self, features: torch.Tensor, masked_tokens: torch.Tensor | None = None):
        if masked_tokens is not None:
            chosen = masked_tokens.bool()
            features = features[chosen]  # expect: data-dependent-shape
        return self.decoder(features)
