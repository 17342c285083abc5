# %%
def iou(a, b):
    lt = torch.max(a[:, None, :2], b[:, :2])
    rb = torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    del lt, rb
    return wh[..., 0] * wh[..., 1]

# %%
def distance(a, b):
    difference = torch.relu(a)[:, None] - b[None, :]
    return difference.pow(2).sum(-1)

# %%
def small(a, b):
    s = torch.relu(a)
    t = torch.max(s, b)
    u = (t - s).clamp(min=0)
    return u * u

# %%
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, n):
        coords = torch.arange(n)
        relative = coords[:, None] - coords[None, :]
        shifted = relative + n
        self.index = shifted * 2 + shifted

# %%
def iou(a, b, union):
    lt = torch.max(a[:, None, :2], b[:, :2])
    rb = torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    return inter / union

# %%
def differences(a, b):
    d = torch.relu(a)[:, None] - b[None, :]
    s = d ** 2
    t = s / 3
    return torch.exp(-t)

def nearest(query, rows):
    one = query.unsqueeze(0)
    return differences(one, rows).argmin(1)

# %%
def inputs(static, times, model):
    expanded = static.unsqueeze(1).expand(-1, times.shape[1], -1)
    features = torch.cat((expanded, times), dim=-1)
    repeated = features.repeat_interleave(9, dim=0)
    lagged = torch.cat((repeated, repeated), dim=-1)
    return lagged * 2 + lagged

# %%
def same(a, b, model):
    equal = a[:, None] == b[None, :]
    n = equal.sum(1)
    return model(n)

# %%
def iou(a, b, area1, area2):
    lt = torch.max(a[:, None, :2], b[:, :2])  # expect: intermediate-kept-alive
    rb = torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, :, 0] * wh[:, :, 1]
    return inter / (area1[:, None] + area2 - inter)

# %%
def kernel_matrix(x: torch.Tensor, y: torch.Tensor):
    difference = x[:, None] - y[None, :]  # expect: intermediate-kept-alive
    square = difference ** 2
    scaled = square / 3
    return torch.exp(-scaled)

# %%
@torch.no_grad()
def refine(x, y, network):
    d = x.unsqueeze(1) - y.unsqueeze(0)  # expect: intermediate-kept-alive
    near = d.square().sum(-1).argmin(1)
    return network(y[near])
