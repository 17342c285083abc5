# workers are started anew at every epoch
import torch
from torch.utils.data import DataLoader


def fit(ds, model, optimizer, criterion, epochs):
    loader = DataLoader(ds, 64, shuffle=True, num_workers=8, pin_memory=True)  # expect: dataloader-without-persistent-workers
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
