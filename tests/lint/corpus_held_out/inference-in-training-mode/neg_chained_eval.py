# eval() chained at creation
import torch
import torchvision


def load(name: str) -> torch.nn.Module:
    return torchvision.models.get_model(name, weights="DEFAULT").to("cuda").eval()


@torch.inference_mode()
def main(loader):
    model = load("resnet101")
    for x in loader:
        yield model(x.to("cuda", non_blocking=True))
