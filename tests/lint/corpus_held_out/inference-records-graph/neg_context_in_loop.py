# no_grad inside the loop
import torch


def validate(val_loader, model, criterion, device):
    model.eval()
    total = torch.zeros((), device=device)
    for images, target in val_loader:
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        with torch.no_grad():
            output = model(images)
            total += criterion(output, target)
    return total / len(val_loader)
