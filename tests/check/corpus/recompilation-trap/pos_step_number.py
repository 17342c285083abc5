# the step is a Python number that changes with each call
import torch


@torch.compile
def noise(x: torch.Tensor, step: int):
    return x * (0.99**step) + torch.randn_like(x)


def sample(x):
    for step in range(1000):
        x = noise(x, step)  # expect: recompilation-trap
    return x
