# there is no transfer to the CPU
import torch
from torch.utils.data import DataLoader


def train(model, dataset, optimizer, criterion):
    device = torch.device("cpu")
    loader = DataLoader(dataset, batch_size=64, num_workers=2, persistent_workers=True)
    for x, y in loader:
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
