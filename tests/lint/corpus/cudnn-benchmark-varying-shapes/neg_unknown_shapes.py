# nothing is known about the sizes
import torch


def setup(seed: int) -> None:
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = True
