# a cached property dies with its object
from functools import cached_property

from torch import nn


class Block(nn.Module):
    @cached_property
    def width(self):
        return sum(p.numel() for p in self.parameters())
