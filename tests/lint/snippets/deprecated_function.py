# %%
torch.linalg.qr(a)
torch.outer(a, b)

# %%
import torch.nn as nn
nn.init.xavier_uniform_(w)

# %%
import numpy as torch
torch.cholesky(a)

# %%
import jax.numpy as jnp
jnp.linalg.svd(a)
range(3)

# %%
def symeig(a):
    return torch.linalg.eigh(a)

symeig(a)

# %%
if hasattr(torch, 'symeig'):
    w = torch.symeig(a)

# %%
try:
    from torch.func import vmap
except ImportError:
    from functorch import vmap

vmap(f)(x)

# %%
x.norm()
torch.normal(0, 1)

# %%
from torch import nn

weight_norm = nn.utils.weight_norm
if hasattr(nn.utils.parametrizations, 'weight_norm'):
    weight_norm = nn.utils.parametrizations.weight_norm

# %%
e, v = torch.symeig(a)  # expect: deprecated-function
x = torch.range(0, 3)  # expect: deprecated-function

# %%
import torch.nn as nn

nn.init.kaiming_normal(w)  # expect: deprecated-function

# %%
from torch.nn import init

init.xavier_uniform(w)  # expect: deprecated-function

# %%
from torch import ger, mm

y = ger(a, b)  # expect: deprecated-function

# %%
import torch.nn.functional as F

def forward(x):
    return F.upsample(x, scale_factor=2)  # expect: deprecated-function

# %%
from functorch import vmap

vmap(f)(x)  # expect: deprecated-function

# %%
import torch
from torch.autograd import Variable

x = Variable(torch.ones(3))  # expect: deprecated-function

# %%
from torchvision.transforms import v2

t = v2.Compose([v2.ToTensor()])  # expect: deprecated-function
