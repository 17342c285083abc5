# main runs once
import torch


def main(model, loader, optimizer, criterion):
    model = torch.compile(model)
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    from setup import criterion, loader, model, optimizer

    main(model, loader, optimizer, criterion)
