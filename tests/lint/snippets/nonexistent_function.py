# %%
torch.compile(f)
torch.compiler.disable(f)
torch.backends.cudnn.benchmark = True

# %%
if hasattr(torch, 'rfft'):
    torch.rfft(x)

# %%
HAS = hasattr(torch.compiler, 'optimize')

def f(m):
    return torch.compiler.optimize(m) if HAS else m

# %%
try:
    from torch._six import inf
except ImportError:
    from torch import inf

# %%
import torch
import torch_npu

torch.npu.synchronize()

# %%
torch.ops.mylib.scale(x)
torch.classes.mylib.Stack()
torch.Tensor.scale = f

# %%
torch.scale_all = f
torch.scale_all(x)

# %%
from .torch import compiler

compiler.optimize(m)

# %%
import torch.nn.functional as F

F.relu(x)
F.scaled_dot_product_attention(q, k, v)

# %%
x = torch.ones(3)
x.optimize()
torch.onnx.export(m, a)
torch.utils.data.DataLoader(d)

# %%
from torch.utils.tensorboard import SummaryWriter
from torch.utils import tensorboard, data

# %%
model = torch.compiler.optimize(model)  # expect: nonexistent-function

# %%
from torch.compiler import optimize  # expect: nonexistent-function

optimize(model)

# %%
torch.cuda.synchronise()  # expect: nonexistent-function

# %%
torch.backends.cudnn.benchmrk = True  # expect: nonexistent-function

# %%
import torch.nn.functional as F

y = F.sofmax(x, dim=1)  # expect: nonexistent-function

# %%
from torch._six import string_classes  # expect: nonexistent-function

# %%
import torch.distributed.pipeline.sync  # expect: nonexistent-function

# %%
import torch as t

y = t.rfft(x, 1)  # expect: nonexistent-function

# %%
from torch.onnx import (
    export,
    dynamo_export,  # expect: nonexistent-function
)
