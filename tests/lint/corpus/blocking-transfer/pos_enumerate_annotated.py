# an annotated DataLoader inside enumerate
import torch
from torch.utils.data import DataLoader


@torch.inference_mode()
def evaluate(model: torch.nn.Module, loader: DataLoader, metric, device: torch.device):
    model.eval()
    for i, (x, y) in enumerate(loader):
        x = x.to(device)  # expect: blocking-transfer
        y = y.to(device)  # expect: blocking-transfer
        metric.update(model(x), y)
    return metric.compute()
