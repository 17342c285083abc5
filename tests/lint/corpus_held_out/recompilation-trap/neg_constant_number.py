# the same number in each call
import torch


@torch.compile
def smooth(x, width):
    return torch.nn.functional.avg_pool1d(x, width, 1)


def run(loader):
    return [smooth(batch, 5) for batch in loader]
