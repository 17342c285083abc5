# compiled before the loop
import torch


def train(model, loader, optimizer, criterion):
    step_model = torch.compile(model)
    for x, y in loader:
        optimizer.zero_grad()
        criterion(step_model(x), y).backward()
        optimizer.step()
