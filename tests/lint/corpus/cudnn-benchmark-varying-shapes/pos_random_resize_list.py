# multi-scale training by a random choice of sizes
import random

import torch
import torch.nn.functional as F

SIZES = [448, 512, 576, 640]


def main(model, loader, optimizer, criterion):
    torch.backends.cudnn.benchmark = True  # expect: cudnn-benchmark-varying-shapes
    model.train()
    for images, targets in loader:
        size = random.choice(SIZES)
        images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
        loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
