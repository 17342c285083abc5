# the broadcast result is used in the last line
import torch


@torch.no_grad()
def attention_map(q: torch.Tensor, k: torch.Tensor, value: torch.Tensor):
    diff = q[:, None, :] - k[None, :, :]
    weight = (-diff.square().sum(-1)).softmax(-1)
    pooled = weight @ value
    direction = (weight.unsqueeze(-1) * diff).sum(1)
    return pooled, direction
