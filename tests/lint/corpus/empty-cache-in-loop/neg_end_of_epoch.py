# between training and validation, once an epoch
import torch


def fit(model, train_loader, validate, optimizer, criterion, epochs):
    for epoch in range(epochs):
        for x, y in train_loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        torch.cuda.empty_cache()
        validate(model)
