# dropout at inference on purpose
import torch
from torch import nn


def uncertainty(model: nn.Module, x: torch.Tensor, samples: int = 20):
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    with torch.no_grad():
        draws = torch.stack([model(x).softmax(-1) for _ in range(samples)])
    return draws.mean(0), draws.var(0)
