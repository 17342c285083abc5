# lists, tuples and dictionaries are indexed, not tensors by masks
import torch
from torch import nn


class Neck(nn.Module):
    def __init__(self, keys: list[str]):
        super().__init__()
        self.keys = keys
        self.convs = nn.ModuleDict({key: nn.Conv2d(64, 64, 1) for key in keys})

    def forward(self, features: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        outputs = [self.convs[key](features[key]) for key in self.keys]
        last = len(outputs) > 1
        top = outputs[last]
        outputs[0] = outputs[0] + top.mean()
        return outputs
