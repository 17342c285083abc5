# each call waits for the device and gives the cache back
import torch


def train(model, loader, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        torch.cuda.empty_cache()  # expect: empty-cache-in-loop
