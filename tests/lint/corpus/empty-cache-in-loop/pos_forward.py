# in forward
from torch import nn
from torch.cuda import empty_cache


class Stage(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.a = a
        self.b = b

    def forward(self, x):
        x = self.a(x)
        empty_cache()  # expect: empty-cache-in-loop
        return self.b(x)
