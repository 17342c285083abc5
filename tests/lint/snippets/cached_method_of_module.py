# %%
import functools
import torch

@functools.lru_cache(maxsize=8)
def mask(size, device):
    return torch.ones(size, size, device=device).tril()

# %%
import functools
from torch import nn

class Attention(nn.Module):
    @staticmethod
    @functools.lru_cache(maxsize=8)
    def mask(size):
        return size

    @functools.cached_property
    def scale(self):
        return self.dim ** -0.5

# %%
import functools
import torch

class Settings:
    @functools.cache
    def read(self, path: str):
        return path

# %%
import functools
from torch import nn

class Attention(nn.Module):
    @functools.lru_cache(maxsize=None)  # expect: cached-method-of-module
    def mask(self, size):
        return size

# %%
from functools import cache
import torch

@cache  # expect: cached-method-of-module
def norm(x: torch.Tensor, p: int = 2):
    return x.norm(p)

# %%
from functools import lru_cache
from torch import nn

class Block(nn.Module):
    @lru_cache  # expect: cached-method-of-module
    def table(self):
        return self.weight.detach().clone()
