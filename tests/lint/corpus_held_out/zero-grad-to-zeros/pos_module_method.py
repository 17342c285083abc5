# Module.zero_grad takes the same argument
import torch
from torch import nn


class Trainer:
    def __init__(self, net: nn.Module):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(self, x, y):
        self.net.zero_grad(set_to_none=False)  # expect: zero-grad-to-zeros
        loss = nn.functional.mse_loss(self.net(x), y)
        loss.backward()
        self.optimizer.step()
