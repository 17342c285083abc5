# the list lives for one iteration
import torch


def train(model, loader, optimizer, criterion, scales=(0.5, 1.0)):
    for x, y in loader:
        losses = []
        for scale in scales:
            resized = torch.nn.functional.interpolate(x, scale_factor=scale)
            losses.append(criterion(model(resized), y))
        total = torch.stack(losses).sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
