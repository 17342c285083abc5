# compiled again for each batch
import torch


def train(model, loader, optimizer, criterion):
    for x, y in loader:
        compiled = torch.compile(model)  # expect: recompilation-trap|compile-per-call
        optimizer.zero_grad()
        criterion(compiled(x), y).backward()
        optimizer.step()
