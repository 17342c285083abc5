# the same through an import alias
import torch as th
import torch.nn as nn


class Quantile(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x: th.Tensor) -> th.Tensor:
        levels = th.tensor([0.1, 0.5, 0.9]).to(x)  # expect: tensor-made-in-forward|copy-to-device-in-forward
        return self.body(x).unsqueeze(-1) * levels
