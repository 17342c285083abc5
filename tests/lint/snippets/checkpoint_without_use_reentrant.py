# %%
from torch.utils.checkpoint import checkpoint

y = checkpoint(f, x, use_reentrant=False)

# %%
from torch.utils.checkpoint import checkpoint

y = checkpoint(f, x, use_reentrant=True)

# %%
from torch.utils.checkpoint import checkpoint

y = checkpoint(f, x, **options)

# %%
from mine import checkpoint

y = checkpoint(f, x)

# %%
import torch.utils.checkpoint as cp

run = cp.checkpoint

# %%
from torch.utils.checkpoint import checkpoint

y = checkpoint(f, x)  # expect: checkpoint-without-use-reentrant

# %%
y = torch.utils.checkpoint.checkpoint(f, *args)  # expect: checkpoint-without-use-reentrant

# %%
import torch.utils.checkpoint as cp

def forward(x):
    return cp.checkpoint_sequential(  # expect: checkpoint-without-use-reentrant
        layers,
        2,
        x,
    )
