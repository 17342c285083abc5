# flags of the module, lists and strings
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, use_skip: bool, names: list[str]):
        super().__init__()
        self.use_skip = use_skip
        self.names = names
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in names)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = {}
        for name, layer in zip(self.names, self.layers):
            y = torch.relu(layer(x))
            if self.use_skip and not self.training:
                y = y + x
            if name in outputs:
                continue
            outputs[name] = y
        return outputs
