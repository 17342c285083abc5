# log(1 + x) loses all digits of a small x
import torch


def softplus_like(x: torch.Tensor) -> torch.Tensor:
    return torch.log(1 + x.abs())  # expect: handwritten-log1p
