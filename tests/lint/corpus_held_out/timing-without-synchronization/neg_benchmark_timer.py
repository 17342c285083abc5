# torch's own Timer synchronizes
import torch
from torch.utils.benchmark import Timer


def measure(model):
    x = torch.randn(8, 3, 224, 224, device="cuda")
    return Timer("model(x)", globals={"model": model.cuda(), "x": x}).blocked_autorange().median
