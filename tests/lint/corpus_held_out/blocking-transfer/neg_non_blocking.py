# pinned and asynchronous
import torch
from torch.utils.data import DataLoader


def train(model, dataset, optimizer, criterion):
    device = torch.device("cuda")
    loader = DataLoader(dataset, batch_size=64, num_workers=8, pin_memory=True, persistent_workers=True)
    for images, labels in loader:
        images = images.to(device, non_blocking=True)
        labels = labels.to(device=device, non_blocking=True)
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
