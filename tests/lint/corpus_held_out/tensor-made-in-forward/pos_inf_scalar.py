# a fill value is turned into a tensor in each call
import torch
from torch import nn


class GPT2Attention(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(n, n, dtype=torch.bool)))

    def forward(self, q, k, v):
        w = q @ k.transpose(-1, -2)
        n = w.size(-1)
        fill = torch.tensor(torch.finfo(w.dtype).min, dtype=w.dtype).to(w.device)  # expect: tensor-made-in-forward|copy-to-device-in-forward
        w = torch.where(self.bias[:n, :n], w, fill)
        return w.softmax(-1) @ v
