# a number for each sample is small
import torch


@torch.no_grad()
def predict(model, loader):
    model.eval()
    ids = []
    for images in loader:
        ids.append(model(images.cuda(non_blocking=True)).argmax(dim=1))
    return torch.cat(ids).cpu()
