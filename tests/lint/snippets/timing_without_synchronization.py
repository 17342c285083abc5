# %%
import time
import torch

model = model.cuda()
t = time.time()
model(x)
torch.cuda.synchronize()
d = time.time() - t

# %%
import time
import torch

model = model.cuda()
t = time.time()
loss = model(x).sum().item()
d = time.time() - t

# %%
import time
import torch

model = torch.nn.Linear(3, 3)
t = time.time()
model(x)
d = time.time() - t

# %%
import time
import torch

model = model.cuda()
t = time.time()
train(model)
d = time.time() - t

# %%
import time
import torch

x = torch.ones(3, device='cuda')
t = time.time()
print(x + 1)
d = time.time() - t

# %%
import time
import torch

x = torch.ones(3, device='cuda')
t = time.time()
read(path)
d = time.time() - t

# %%
import time
import torch

model = torch.nn.Linear(3, 3).cuda()
x = torch.ones(3, device='cuda')
t = time.time()
y = model(x)
d = time.time() - t  # expect: timing-without-synchronization

# %%
import time
import torch

a = torch.ones(9, 9, device='cuda')
t0 = time.perf_counter()
b = a @ a
t1 = time.perf_counter()  # expect: timing-without-synchronization
print(t1 - t0)

# %%
from timeit import default_timer
import torch

def bench(model, x, device='cuda'):
    model.to(device)
    s = default_timer()
    for _ in range(10):
        loss = model(x).sum()
        loss.backward()
    return default_timer() - s  # expect: timing-without-synchronization

# %%
import time
import torch

model = torch.nn.Linear(3, 3).to('mps')
x = torch.ones(3, device='mps')
t = time.time()
y = model(x)
d = time.time() - t  # expect: timing-without-synchronization
