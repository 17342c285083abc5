# float() of a device tensor in every batch of the evaluation loop
import torch


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct, seen = 0.0, 0
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        logits = model(x)
        correct += float((logits.argmax(dim=1) == y).sum())  # expect: scalar-from-tensor
        seen += y.numel()
    return correct / seen
