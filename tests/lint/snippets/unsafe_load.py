# %%
torch.load(path, weights_only=True)

# %%
torch.load(path, map_location='cpu', weights_only=False)

# %%
torch.load(path, **options)

# %%
import json

json.load(file)

# %%
if TORCH_VERSION >= (2, 6):
    torch.load(path)

# %%
import numpy as np

np.load(path)
model.load(path)

# %%
state = torch.load('x.pt')  # expect: unsafe-load

# %%
model.load_state_dict(torch.load(path, map_location='cpu')['model'])  # expect: unsafe-load

# %%
from torch import load

load(path)  # expect: unsafe-load

# %%
import torch, pickle

torch.load(path, 'cpu', pickle)  # expect: unsafe-load
