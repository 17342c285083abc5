# on MPS a copy that nobody waits for may hold other data (pytorch/pytorch#189690)
import torch
from torch.utils.data import DataLoader


def best_device():
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def train(model, dataset, optimizer, criterion):
    device = best_device()
    model.to(device)
    for x, y in DataLoader(dataset, batch_size=64, num_workers=2, pin_memory=True, persistent_workers=True):
        x, y = x.to(device), y.to("mps:0")
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()


def evaluate(model, dataset, anchor: torch.Tensor):
    for x, _ in DataLoader(dataset, batch_size=64, num_workers=2, persistent_workers=True):
        if anchor.device.type != "cpu":
            x = x.to(anchor.device, non_blocking=True)
