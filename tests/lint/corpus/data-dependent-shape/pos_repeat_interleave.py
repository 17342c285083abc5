# tensor repeats without output_size
import torch
from torch import nn


class LengthRegulator(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, durations: torch.Tensor) -> torch.Tensor:
        expanded = torch.repeat_interleave(x, durations, dim=0)  # expect: data-dependent-shape
        return self.proj(expanded)
