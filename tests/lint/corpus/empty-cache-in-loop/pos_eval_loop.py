# an evaluation loop with del and empty_cache per batch
import torch


@torch.no_grad()
def evaluate(model, val_loader, meter, device):
    model.eval()
    for images, target in val_loader:
        output = model(images.to(device, non_blocking=True))
        meter.update(output, target)
        del output
        torch.cuda.empty_cache()  # expect: empty-cache-in-loop
