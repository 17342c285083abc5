# position ids made on the CPU in forward
import torch
from torch import nn


class Embeddings(nn.Module):
    def __init__(self, vocab: int, length: int, dim: int):
        super().__init__()
        self.word = nn.Embedding(vocab, dim)
        self.position = nn.Embedding(length, dim)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(ids.size(1)).to(ids.device)  # expect: copy-to-device-in-forward|tensor-made-in-forward
        return self.word(ids) + self.position(positions)
