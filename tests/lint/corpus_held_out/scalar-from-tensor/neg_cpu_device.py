# everything runs on the CPU, so there is nobody to wait for
import torch
import torch.nn.functional as F

device = torch.device("cpu")


def train(loader, optimizer):
    net = torch.nn.Linear(16, 2).to(device)
    total = 0.0
    for x, y in loader:
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total
