# tensors are compared by identity, and kept
import functools

import torch
from torch import Tensor


@functools.cache  # expect: cached-method-of-module
def pairwise(points: Tensor, scale: float) -> Tensor:
    return torch.cdist(points, points) * scale
