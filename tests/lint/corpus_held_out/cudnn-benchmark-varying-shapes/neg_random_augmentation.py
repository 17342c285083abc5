# random flips and crops of one output size
import random

import torch
from torchvision import transforms


def main():
    torch.backends.cudnn.benchmark = True
    seed = random.randrange(1 << 30)
    torch.manual_seed(seed)
    return transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.RandomRotation(random.choice([5, 10])),
            transforms.ToTensor(),
        ]
    )
