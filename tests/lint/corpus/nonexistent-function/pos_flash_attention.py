# the function is scaled_dot_product_attention
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.flash_attention(q, k, v)  # expect: nonexistent-function
