# %%
with torch.amp.autocast('cuda'):
    f(x)

# %%
with torch.autocast('cuda', dtype=torch.float16):
    f(x)

# %%
from torch.amp import GradScaler

scaler = GradScaler('cuda')

# %%
try:
    from torch.amp import autocast
except ImportError:
    from torch.cuda.amp import autocast

with autocast():
    f(x)

# %%
from apex import amp

with amp.autocast():
    f(x)

# %%
from mine.cuda.amp import autocast

with autocast():
    f(x)

# %%
with torch.cuda.amp.autocast(enabled=True):  # expect: deprecated-amp
    f(x)

# %%
scaler = torch.cuda.amp.GradScaler()  # expect: deprecated-amp

# %%
from torch.cuda.amp import GradScaler, autocast

scaler = GradScaler(2.0**10)  # expect: deprecated-amp
with autocast(use_amp, torch.bfloat16):  # expect: deprecated-amp
    f(x)

# %%
from torch.cuda import amp

with amp.autocast(dtype=dtype):  # expect: deprecated-amp
    f(x)

# %%
class F(torch.autograd.Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd  # expect: deprecated-amp
    def forward(ctx, x):
        return x

# %%
import torch.cuda.amp as amp

@amp.custom_fwd(cast_inputs=torch.float32)  # expect: deprecated-amp
def forward(ctx, x):
    return x

# %%
with torch.cpu.amp.autocast(dtype=torch.bfloat16):  # expect: deprecated-amp
    f(x)
