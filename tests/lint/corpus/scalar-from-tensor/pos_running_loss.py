# loss.item() each step makes the host wait for the device in every iteration
import torch
from torch import nn


def train_one_epoch(model: nn.Module, loader, optimizer, device):
    criterion = nn.CrossEntropyLoss()
    model.train()
    running_loss = 0.0
    for images, targets in loader:
        images = images.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = criterion(model(images), targets)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * images.size(0)  # expect: scalar-from-tensor
    return running_loss / len(loader.dataset)
