# deleted after its last use
import torch


@torch.no_grad()
def sinkhorn(x, y, steps):
    diff = x[:, None, :] - y[None, :, :]
    cost = diff.pow(2).sum(-1)
    del diff
    kernel = torch.exp(-cost / 0.1)
    u = torch.ones(x.size(0), device=x.device)
    for _ in range(steps):
        v = 1.0 / (kernel.t() @ u)
        u = 1.0 / (kernel @ v)
    return (u[:, None] * kernel * v[None, :] * cost).sum()
