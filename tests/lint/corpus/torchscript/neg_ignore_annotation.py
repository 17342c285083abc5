# an annotation that does nothing without scripting
import torch
from torch import nn


class Vit(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.zeros(1, 197, dim))

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return {"pos_embed"}

    def forward(self, x):
        return x + self.pos_embed
