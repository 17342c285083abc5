# str.format of a loss tensor each step
import torch
from torch import nn


def train(net: nn.Module, loader, opt: torch.optim.Optimizer):
    crit = nn.L1Loss()
    for epoch in range(10):
        for noisy, clean in loader:
            opt.zero_grad()
            loss = crit(net(noisy), clean)
            loss.backward()
            opt.step()
            print("epoch {} loss {:.3f}".format(epoch, loss))  # expect: tensor-in-print
