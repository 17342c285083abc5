# it saves no memory: it forbids the hooks that would
import torch


def train(model, loader, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autograd.graph.disable_saved_tensors_hooks("save memory"):  # expect: disable-saved-tensors-hooks
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
