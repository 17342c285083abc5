# %%
out = model(x)
print(out.cpu().numpy())

# %%
def run(model, loader):
    kept = []
    for x in loader:
        kept.append(model(x))
    return torch.cat(kept).cpu()

# %%
def run(loader):
    for x, y in loader:
        show(x.numpy(), y.cpu())

# %%
def run(model, loader):
    for x in loader:
        out = model(x).to('cpu', non_blocking=True)

# %%
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        scale = np.sqrt(x.shape[-1])
        return torch.relu(x) / scale

# %%
import torch
import numpy as np
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        a = torch.relu(x).cpu()  # expect: copy-to-host
        b = np.asarray(x.tanh())  # expect: copy-to-host
        c = x.detach().to('cpu').numpy()  # expect: copy-to-host
        return a

# %%
def evaluate(model, loader):
    kept = []
    for x, y in loader:
        out = model(x.cuda())
        kept.append(out.argmax(1).cpu().numpy())  # expect: copy-to-host
    return kept
