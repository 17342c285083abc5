# features of the whole training set on the device
import torch


def features(backbone, data_loader, device):
    backbone.eval()
    bank = []
    with torch.no_grad():
        for x, _ in data_loader:
            x = x.to(device, non_blocking=True)
            z = backbone(x)
            bank.append(torch.flatten(z, 1))  # expect: outputs-kept-on-device
    return torch.cat(bank)
