# every module that was ever made stays in the cache
from functools import lru_cache

import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    @lru_cache(maxsize=128)  # expect: cached-method-of-module
    def table(self, length):
        return torch.arange(length)[:, None] / self.dim
