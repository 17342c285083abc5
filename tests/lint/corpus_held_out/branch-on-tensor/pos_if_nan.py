# Python if on a tensor in every step
import torch
import torch.nn.functional as F


def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if torch.isnan(loss):  # expect: branch-on-tensor
            continue
        loss.backward()
        optimizer.step()
