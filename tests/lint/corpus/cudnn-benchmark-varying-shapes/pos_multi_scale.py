# cuDNN searches anew for every new size
import random

import torch
import torch.nn.functional as F

torch.backends.cudnn.benchmark = True  # expect: cudnn-benchmark-varying-shapes


def train(model, loader, optimizer, criterion):
    for x, y in loader:
        size = random.randrange(320, 640, 32)
        x = F.interpolate(x, size=(size, size), mode="bilinear")
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
