# %%
import taichi as ti
import torch
from torch import nn

@ti.kernel
def march(t: ti.types.ndarray()):
    while t < 3:
        t += 1

class Rays(nn.Module):
    def forward(self, t):
        t = t.contiguous()
        march(t)
        return t

# %%
import torch
from torch import nn

class Loss(nn.Module):
    def forward(self, x, cross_attentions: torch.Tensor):
        return torch.cat([one[:, :2] for one in cross_attentions])

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x, mask=None):
        if x.shape[0] > 1 and x.ndim == 4 and x.size(1) != 3:
            x = torch.relu(x)
        if mask is not None and mask.dim() == 2 and mask.dtype == torch.bool:
            x = x * mask
        assert x.numel() and not x.is_cuda or x.device.type == 'cuda'
        return x if self.training else torch.tanh(x)

# %%
x = torch.rand(3)
if (x > 0.5).any():
    print('some')

# %%
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        if np.random.rand() < 0.5 or np.zeros(3).any():
            return x
        return torch.relu(x)

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        if torch.rand(1) < 0.5:
            return x
        return torch.relu(x)

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        if x.max() > 1:  # expect: branch-on-tensor
            x = x / 255
        while (x > 1).any():  # expect: branch-on-tensor
            x = x / 2
        assert torch.isfinite(x).all()  # expect: branch-on-tensor
        y = x if x.sum() else -x  # expect: branch-on-tensor
        return y

# %%
def train(model, loader, criterion):
    for x, y in loader:
        loss = criterion(model(x), y)
        if torch.isnan(loss) or not loss < 100:  # expect: branch-on-tensor
            continue
        loss.backward()

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        h = torch.relu(x)
        if torch.equal(x, h):  # expect: branch-on-tensor
            return h
        for row in h:  # expect: branch-on-tensor
            row.mul_(2)
        return h
