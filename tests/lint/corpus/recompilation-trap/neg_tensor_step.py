# the step is a tensor
import torch


@torch.compile
def noise(x, step):
    return x * torch.pow(0.99, step)


def sample(x):
    steps = torch.arange(1000, device=x.device)
    for i in range(1000):
        x = noise(x, steps[i])
    return x
