# %%
from torch import nn
import torch

class Rotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.I = torch.eye(4)
        self.J = torch.eye(4)
        self.moved = False

    def forward(self, x):
        if self.I.device != x.device:
            self.I = self.I.to(x.device)
        if not self.moved:
            self.J = self.J.to(x.device)
            self.moved = True
        self.I = self.I.to(x.device)
        return torch.cat((x @ self.I @ self.J, torch.tensor([]).to(x.device)))

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x, mask):
        mask = mask.to(x.device)
        y = torch.ones(3, device=x.device).to(torch.float16)
        return x.to(torch.float32) * mask.to(x.dtype) * y

# %%
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('scale', torch.ones(3))
        self.table = torch.zeros(3).cuda()

    def forward(self, x):
        return x * self.scale.to(x.device)

# %%
table = torch.arange(10).cuda()

# %%
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.ones(3)

    def forward(self, x):
        position = torch.arange(x.shape[1]).to(x.device)  # expect: copy-to-device-in-forward
        mask = torch.zeros(3, dtype=torch.bool)
        mask = mask.cuda()  # expect: copy-to-device-in-forward
        return x * self.scale.to(x.device) * position * mask  # expect: copy-to-device-in-forward

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return self.shift(x)

    def shift(self, x):
        return x + torch.eye(3).type_as(x)  # expect: copy-to-device-in-forward
