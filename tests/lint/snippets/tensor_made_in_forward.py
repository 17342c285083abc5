# %%
import torch
from torch import nn

class Crops(nn.Module):
    def forward(self, x):
        counts = torch.unique_consecutive(torch.tensor([one.shape[-1] for one in x]), return_counts=True)[1]
        kept = torch.tensor(self.p)
        for end in counts:
            pass
        return self.body(x)

# %%
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('mean', torch.tensor([0.5, 0.5]))

    def forward(self, x):
        a = torch.arange(x.shape[1], device=x.device)
        b = torch.zeros_like(x) + x.new_zeros(3)
        return x - self.mean + a + b + torch.as_tensor(x)

# %%
mean = torch.tensor([0.5])

def prepare(n):
    return torch.arange(n)

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        if torch.rand(1) < 0.5:
            return x
        mask = torch.ones(3)
        return torch.relu(x) * mask.to(x.device)

# %%
import functools
import torch
from torch import nn

@functools.lru_cache
def window(n):
    return torch.arange(n)

class Net(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, torch.tensor(0.5)) + window(3) + torch.cat([torch.tensor([]), x])

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        mean = torch.tensor([0.5, 0.5], device=x.device)  # expect: tensor-made-in-forward
        step = torch.arange(x.shape[1])  # expect: tensor-made-in-forward
        return x - mean + step

# %%
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return x * self.window(x.shape[0])

    def window(self, n):
        return torch.from_numpy(np.hanning(n))  # expect: tensor-made-in-forward

# %%
# torch.set_default_device is called nowhere
class Net(torch.nn.Module):
    def forward(self, x):
        return x * torch.arange(x.shape[1])  # expect: tensor-made-in-forward
