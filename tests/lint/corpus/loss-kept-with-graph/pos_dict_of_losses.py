# detection losses summed by name, graphs and all
from collections import defaultdict


def train(model, data_loader, optimizer):
    model.train()
    sums = defaultdict(float)
    for images, targets in data_loader:
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        for name, value in loss_dict.items():
            sums[name] += value  # expect: loss-kept-with-graph
    return sums
