# forward asks whether any element of the mask is set
import torch
from torch import nn


class MaskedSelf(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 8, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if mask.any():  # expect: branch-on-tensor
            x = x.masked_fill(mask.unsqueeze(-1), 0.0)
        return self.attn(x, x, x, need_weights=False)[0]
