# batch statistics are recomputed on purpose, in training mode
import torch
import torchvision


@torch.no_grad()
def update_bn(loader):
    model = torchvision.models.resnet18(weights="DEFAULT")
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    model.train()
    for x, _ in loader:
        model(x)
    return model.eval()
