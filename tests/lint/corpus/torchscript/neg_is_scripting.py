# only asks whether somebody else scripts
import torch
from torch import nn


class Conv(nn.Conv2d):
    def forward(self, x):
        if torch.jit.is_scripting() or torch.jit.is_tracing():
            return super().forward(x)
        return nn.functional.conv2d(x, self.weight, self.bias, self.stride, "same")
