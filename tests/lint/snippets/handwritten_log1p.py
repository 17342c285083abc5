# %%
torch.log1p(x)
torch.expm1(x)
torch.log(2 + x)
torch.exp(x) - 2
torch.exp(x) + 1

# %%
import math

math.log(1 + x)
math.exp(x) - 1

# %%
torch.log(x - 1)
1 - torch.exp(x)
torch.exp(x - 1)

# %%
torch.log(x, out=1 + y)

# %%
def gen_relative_coords(n):
    return torch.log(1.0 + torch.arange(n).abs())

# %%
y = torch.log(1 + x)  # expect: handwritten-log1p
z = torch.log(x + 1.0)  # expect: handwritten-log1p

# %%
y = torch.exp(x) - 1  # expect: handwritten-log1p

# %%
from torch import exp

y = exp(-x * 2) - 1.0  # expect: handwritten-log1p
