# forward decorated with the old autocast
import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast  # allow: deprecated-amp


class Net(nn.Module):
    @autocast()  # expect: deprecated-amp+1
    def forward(self, x):
        return x * 2


def make():
    return Net(), GradScaler(init_scale=1024)  # expect: deprecated-amp
