# batches go to a CUDA device from pageable memory
import torch
from torch.utils.data import DataLoader


def train(dataset, model, optimizer, criterion):
    device = torch.device("cuda")
    loader = DataLoader(dataset, batch_size=64, num_workers=4, persistent_workers=True)  # expect: dataloader-without-pinning
    for x, y in loader:
        x = x.to(device, non_blocking=True)  # allow: blocking-transfer
        y = y.to(device, non_blocking=True)  # allow: blocking-transfer
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
