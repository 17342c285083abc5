# tokens per expert by nonzero
import torch
from torch import nn


class SparseMoE(nn.Module):
    def __init__(self, dim: int, experts: int, k: int):
        super().__init__()
        self.gate = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(experts))
        self.k = k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(self.k)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).any(-1).nonzero().squeeze(-1)  # expect: data-dependent-shape
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, :1])
        return out
