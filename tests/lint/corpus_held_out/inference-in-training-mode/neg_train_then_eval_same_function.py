# train() and eval() alternate properly
import torch
import torch.nn.functional as F
from torch import nn


def fit(train_loader, val_loader, epochs: int):
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(epochs):
        net.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        net.eval()
        good = torch.zeros(())
        with torch.no_grad():
            for x, y in val_loader:
                good += (net(x).argmax(1) == y).sum()
        print(good)
