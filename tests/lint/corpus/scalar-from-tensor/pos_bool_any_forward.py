# bool() of a device tensor in forward
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, layers: list[nn.Module]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, hidden: torch.Tensor, padding_mask: torch.Tensor) -> torch.Tensor:
        has_padding = bool(padding_mask.any())  # expect: scalar-from-tensor
        for layer in self.layers:
            hidden = layer(hidden, padding_mask if has_padding else None)
        return hidden
