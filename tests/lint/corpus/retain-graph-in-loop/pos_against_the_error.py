# added against an error that a loop without carried state does not have
import torch
from torch import nn


def train(net, loader, optimizer):
    criterion = nn.MSELoss()
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(net(x), y)
            loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
            optimizer.step()
