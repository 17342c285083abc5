# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x, index: torch.LongTensor):
        x[x < 0] = 0
        y = torch.where(x > 1, x, 0)
        return y[index], y[:, 0], y[None, ..., 1:]

# %%
x = torch.rand(9)
print(x[x > 0.5], x.nonzero(), torch.unique(x))

# %%
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        keep = np.unique(np.arange(3))
        mask = np.ones(3, dtype=bool)
        return torch.relu(x), keep[mask], np.where(mask)

# %%
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def forward(self, x, n):
        return F.one_hot(x, 5), x.repeat_interleave(2, dim=0), torch.where(x > 0, 1, 2)

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        mask = x > 0
        a = x[mask]  # expect: data-dependent-shape
        b = torch.nonzero(mask)  # expect: data-dependent-shape
        c = torch.masked_select(x, mask)  # expect: data-dependent-shape
        d = torch.where(mask)  # expect: data-dependent-shape
        e = x.unique()  # expect: data-dependent-shape
        f = x[~mask & (x < 3)]  # expect: data-dependent-shape
        return a, b, c, d, e, f

# %%
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def forward(self, x, lengths: torch.Tensor):
        y = torch.repeat_interleave(x, lengths, dim=0)  # expect: data-dependent-shape
        z = F.one_hot(lengths)  # expect: data-dependent-shape
        n = torch.bincount(lengths)  # expect: data-dependent-shape
        return y, z, n

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x, y: torch.Tensor):
        keep = torch.isfinite(x).all(dim=-1)
        x[keep] = y[keep]  # expect: data-dependent-shape
        return x
