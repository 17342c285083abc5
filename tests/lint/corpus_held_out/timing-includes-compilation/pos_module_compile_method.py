# Module.compile in place, first call timed
import time

import torch
from torch import nn


@torch.no_grad()
def main():
    net = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)).eval()
    net.compile()
    x = torch.randn(32, 512)
    t = time.perf_counter()  # expect: timing-includes-compilation+3
    for _ in range(10):
        net(x)
    print((time.perf_counter() - t) / 10)
