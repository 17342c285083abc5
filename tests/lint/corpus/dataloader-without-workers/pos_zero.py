# num_workers=0 written out
import torch
from torchvision import datasets, transforms


def loaders(root):
    train = datasets.CIFAR10(root, transform=transforms.RandomCrop(32, 4))
    return torch.utils.data.DataLoader(train, 128, shuffle=True, num_workers=0, pin_memory=True)  # expect: dataloader-without-workers
