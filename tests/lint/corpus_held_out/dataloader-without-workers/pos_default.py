# the default of no workers: the device waits while samples are read
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def main(model, optimizer, criterion):
    data = datasets.ImageFolder("train", transforms.ToTensor())
    loader = DataLoader(data, batch_size=64, shuffle=True, pin_memory=True)  # expect: dataloader-without-workers
    for x, y in loader:
        x = x.to("cuda", non_blocking=True)
        y = y.to("cuda", non_blocking=True)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
