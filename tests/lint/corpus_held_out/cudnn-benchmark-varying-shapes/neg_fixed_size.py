# every picture is cropped to one size
import torch
from torchvision import transforms

torch.backends.cudnn.benchmark = True
transform = transforms.Compose(
    [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)
