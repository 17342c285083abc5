# accumulated on the device, read once after the loop
import torch


@torch.inference_mode()
def evaluate(model, loader, device):
    model.eval()
    correct = torch.zeros((), device=device)
    total = 0
    for x, y in loader:
        x = x.to(device, non_blocking=True)
        y = y.to(device, non_blocking=True)
        correct += (model(x).argmax(1) == y).sum()
        total += y.shape[0]
    return correct.item() / total
