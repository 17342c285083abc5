# the sum keeps the graph of every step alive
import torch.nn.functional as F


def train(model, loader, optimizer):
    model.train()
    total_loss = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total_loss += loss  # expect: loss-kept-with-graph
    return total_loss / len(loader)
