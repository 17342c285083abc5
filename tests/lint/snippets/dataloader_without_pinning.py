# %%
from torch.utils.data import DataLoader

l = DataLoader(d, pin_memory=True)
for x in l:
    x.cuda()

# %%
from torch.utils.data import DataLoader

l = DataLoader(d)
for x in l:
    y = model(x)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d)
model.cuda()
for x in l:
    print(x)

# %%
import torch
from torch.utils.data import DataLoader

device = torch.device('mps')
l = DataLoader(d)
for x in l:
    x = x.to(device)

# %%
import torch
from torch.utils.data import DataLoader

device = 'cuda' if torch.cuda.is_available() else 'mps' if torch.backends.mps.is_available() else 'cpu'
l = DataLoader(d)
for x in l:
    x = x.to(device)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, **kwargs)
for x in l:
    x.cuda()

# %%
from torch.utils.data import DataLoader

l = DataLoader(d)
for x in l:
    x = x.to(torch.float16)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, 64)  # expect: dataloader-without-pinning
for x in l:
    x = x.cuda()

# %%
import torch
from torch.utils.data import DataLoader

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_loader = DataLoader(d, pin_memory=False)  # expect: dataloader-without-pinning

def train(train_loader):
    for i, (x, y) in enumerate(train_loader):
        x, y = x.to(device), y.to(device)

# %%
from torch.utils.data import DataLoader

class A:
    def __init__(self, d):
        self.l = DataLoader(d)  # expect: dataloader-without-pinning

    def run(self):
        for batch in self.l:
            y = self.net(batch['x'].to('cuda:0'))
