# eval() before the loop
import torch
import torchvision

model = torchvision.models.resnet50(weights="DEFAULT").to("cuda")
model.eval()


@torch.no_grad()
def classify(loader):
    return torch.cat([model(images.to("cuda", non_blocking=True)).argmax(1) for images in loader])
