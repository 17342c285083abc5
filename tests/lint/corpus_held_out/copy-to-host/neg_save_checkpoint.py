# a checkpoint at the end of each epoch
import torch


def train(model, loader, optimizer, criterion, epochs, path):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        torch.save(state, f"{path}/{epoch}.pt")
