# a finiteness check of every gradient at each step
import torch


def train(model, loader, optimizer, criterion):
    skipped = 0
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):  # expect: branch-on-tensor
            skipped += 1
            continue
        optimizer.step()
    return skipped
