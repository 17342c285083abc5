# the name is bound anew, the large tensor goes
import torch


@torch.no_grad()
def energy(x: torch.Tensor, model) -> torch.Tensor:
    d = x[:, None, :] - x[None, :, :]
    d = d.square().sum(-1)
    d = d.exp().sum(1)
    hidden = model(x)
    return hidden.sum() + d.sum()
