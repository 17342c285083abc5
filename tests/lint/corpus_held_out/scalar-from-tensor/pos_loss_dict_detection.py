# one item() per loss and step, in a dictionary comprehension
import torch


def train(model, data_loader, optimizer, scheduler):
    model.train()
    history = []
    for images, targets in data_loader:
        loss_dict = model(images, targets)
        total = torch.stack(list(loss_dict.values())).sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        scheduler.step()
        history.append(total.item())  # expect: scalar-from-tensor
    return history
