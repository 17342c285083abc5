# the changing number never reaches the compiled function
import torch


def train(model, loader, optimizer, criterion):
    forward = torch.compile(model)
    for step, (x, y) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + step)
        optimizer.zero_grad()
        criterion(forward(x), y).backward()
        optimizer.step()
