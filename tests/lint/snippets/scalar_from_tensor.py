# %%
import torch

def header(path):
    head = torch.from_file(path, False, 256, dtype=torch.int32)
    return int(head[2])

def loop(model, optimizer, loader, paths):
    for x, path in zip(loader, paths):
        model(x, header(path)).backward()
        optimizer.step()
        torch.cuda.synchronize()
        meter.update(model.last.item())

# %%
import numpy as np
import torch

for x in np.zeros(3):
    print(x.item())

# %%
x = torch.ones(3).sum()
print(x.item())

# %%
def train(model, loader, criterion, device):
    for step, (x, y) in enumerate(loader):
        loss = criterion(model(x.to(device)), y.to(device))
        loss.backward()
        if step % 100 == 0:
            print(loss.item())

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        n = int(x.shape[0])
        return x.view(n, float(x.size(1)), len(x))

# %%
def count(loader):
    seen = 0
    for images, labels in loader:
        seen += labels.sum().item()
    return seen

# %%
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.rates = [r.item() for r in torch.linspace(0, 0.1, depth)]

# %%
def train(model, loader):
    total = torch.zeros((), device='cuda')
    for x in loader:
        loss = model(x.cuda(non_blocking=True)).sum()
        loss.backward()
        total += loss.detach()
    return total.item()

# %%
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return x * x.max().item()  # expect: scalar-from-tensor

# %%
def train(model, loader, criterion, optimizer):
    total = 0.0
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()  # expect: scalar-from-tensor
    return total

# %%
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x, lengths: torch.Tensor):
        h = self.fc(x)
        for i in range(lengths.max()):  # expect: scalar-from-tensor
            h = h + float(h.mean())  # expect: scalar-from-tensor
        return self.crop(h, lengths)

    def crop(self, h, lengths):
        return h[:, : lengths.min()], lengths.tolist()  # expect: scalar-from-tensor

# %%
import torch
from metrics import accuracy
from torch.distributions import Categorical

def train(policy, loader, optimizer):
    for x, y in loader:
        draw = Categorical(logits=policy(x))
        action = draw.sample()
        loss, acc = -draw.log_prob(action).mean(), accuracy(action, y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        print(norm.item())  # expect: scalar-from-tensor
        print(action[0].item(), acc.item())  # expect: scalar-from-tensor
