# a function of the file clears them
import torch


def update(optimizer, scheduler):
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()


def train(model, loader, criterion):
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for x, y in loader:
        criterion(model(x), y).backward()
        update(optimizer, scheduler)
