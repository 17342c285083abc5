# gathered on the device, copied once
import torch


@torch.inference_mode()
def embed(model, loader, device):
    model.eval()
    chunks = []
    for x in loader:
        chunks.append(model(x.to(device, non_blocking=True)))  # allow: outputs-kept-on-device
    return torch.cat(chunks).cpu().numpy()
