# each trial starts with a model of its own
import torch
from torch import nn


def sweep(rates, x, y):
    for rate in rates:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
