# trained in train() mode, then tested without changing it
import torch
import torch.nn.functional as F
from torch import nn


def main(train_loader, test_loader):
    net = nn.Sequential(nn.Linear(784, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    for x, y in train_loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    right = torch.zeros(())
    with torch.no_grad():
        for x, y in test_loader:  # expect: inference-in-training-mode+1
            right += (net(x).argmax(1) == y).sum()
    print(right)
