# lists of tensors and dictionary membership
import torch
from torch import nn, Tensor


class FPN(nn.Module):
    def __init__(self, channels: list[int]):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(c, 256, 1) for c in channels)

    def forward(self, features: dict[str, Tensor]) -> list[Tensor]:
        results = []
        for (name, feature), conv in zip(features.items(), self.lateral):
            if name == "pool":
                continue
            results.append(conv(feature))
        if len(results) > 4 or not results:
            raise ValueError("four levels at most")
        return results
