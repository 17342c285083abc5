# forward and backward are queued, then the clock is read
import timeit

import torch
from torch import nn

net = nn.TransformerEncoderLayer(512, 8).to("cuda")
x = torch.rand(128, 32, 512, device="cuda")
for _ in range(5):
    net(x).sum().backward()
begin = timeit.default_timer()  # expect: timing-without-synchronization+3
for _ in range(50):
    net(x).sum().backward()
print((timeit.default_timer() - begin) / 50)
