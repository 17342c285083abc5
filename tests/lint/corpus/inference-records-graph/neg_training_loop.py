# the loop trains: backward in the same iteration
import torch.nn.functional as F


def train(model, loader, optimizer):
    model.train()
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
