# one of the two is pinned
import torch
from torch.utils.data import DataLoader


def loaders(train, val):
    a = DataLoader(train, 64, shuffle=True, num_workers=8, pin_memory=True, persistent_workers=True)
    b = DataLoader(val, 64, num_workers=8, persistent_workers=True)  # expect: dataloader-without-pinning
    return a, b


def run(train, val, model, step):
    device = torch.device("cuda", 0)
    a, b = loaders(train, val)
    for x in a:
        step(model, x.to(device, non_blocking=True))
    with torch.no_grad():
        model.eval()
        for x in b:
            model(x.to(device, non_blocking=True))  # allow: blocking-transfer
