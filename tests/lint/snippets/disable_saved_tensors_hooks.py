# %%
with torch.autograd.graph.disable_saved_tensors_hooks('hooks are not supported in vmap'):
    f(x)

# %%
with torch.autograd.graph.save_on_cpu():
    f(x)

# %%
with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
    f(x)

# %%
from torch.autograd.graph import disable_saved_tensors_hooks as off

MESSAGE = make()
with off(MESSAGE):
    f(x)

# %%
with torch.autograd.graph.disable_saved_tensors_hooks('less memory'):  # expect: disable-saved-tensors-hooks
    f(x)

# %%
from torch.autograd.graph import disable_saved_tensors_hooks

with disable_saved_tensors_hooks():  # expect: disable-saved-tensors-hooks
    loss = model(x)

# %%
import torch.autograd.graph as g

@g.disable_saved_tensors_hooks('')  # expect: disable-saved-tensors-hooks
def step():
    pass
