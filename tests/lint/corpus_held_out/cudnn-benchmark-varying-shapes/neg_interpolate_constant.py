# resized to one constant size
import torch
import torch.nn.functional as F

torch.backends.cudnn.benchmark = True


@torch.no_grad()
def predict(model, loader):
    model.eval()
    return [model(F.interpolate(x, size=(512, 512))) for x in loader]
