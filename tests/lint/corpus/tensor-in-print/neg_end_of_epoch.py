# one print per epoch
import torch


def train(model, loader, optimizer, criterion, epochs, device):
    for epoch in range(epochs):
        total = torch.zeros((), device=device)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: {total / len(loader)}")
