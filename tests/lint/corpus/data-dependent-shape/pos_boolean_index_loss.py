# boolean indexing in the training loop
import torch
import torch.nn.functional as F


def train(model, loader, optimizer):
    for tokens, labels in loader:
        optimizer.zero_grad()
        logits = model(tokens)
        valid = labels != -100
        loss = F.cross_entropy(logits[valid], labels[valid])  # expect: data-dependent-shape
        loss.backward()
        optimizer.step()
