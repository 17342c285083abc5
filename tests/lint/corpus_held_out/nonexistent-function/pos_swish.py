# the layer is called SiLU
import torch.nn as nn


def block(c: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.Swish())  # expect: nonexistent-function
