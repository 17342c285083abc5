# there is nothing to pin for on Apple's devices
import torch
from torch.utils.data import DataLoader


def train(ds, model, optimizer, criterion):
    device = torch.device("mps")
    model.to(device)
    for x, y in DataLoader(ds, 32, num_workers=2):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
