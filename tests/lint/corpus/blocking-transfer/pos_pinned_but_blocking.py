# the memory is pinned, but the copy still waits
import torch
from torch.utils.data import DataLoader


def train(model, dataset, optimizer, criterion):
    device = torch.device("cuda")
    loader = DataLoader(dataset, batch_size=64, num_workers=8, pin_memory=True, persistent_workers=True)
    for images, labels in loader:
        images = images.to(device)  # expect: blocking-transfer
        labels = labels.to(device)  # expect: blocking-transfer
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
