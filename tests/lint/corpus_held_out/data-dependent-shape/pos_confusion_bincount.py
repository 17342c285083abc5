# bincount in the evaluation loop
import torch


@torch.no_grad()
def confusion(model, loader, classes, device):
    model.eval()
    table = torch.zeros(classes * classes, dtype=torch.long, device=device)
    for image, mask in loader:
        pred = model(image.to(device, non_blocking=True)).argmax(1)
        code = mask.to(device, non_blocking=True) * classes + pred
        table += torch.bincount(code.flatten(), minlength=classes * classes)  # expect: data-dependent-shape
    return table.view(classes, classes)
