# %%
import time
import torch

f = torch.compile(g)
f(x)
t = time.time()
f(x)
print(time.time() - t)

# %%
import time
import torch

f = torch.compile(g)
warm(f, x)
t = time.time()
f(x)
d = time.time() - t

# %%
import time

t = time.time()
f(x)
print(time.time() - t)

# %%
import time
import torch

f = torch.compile(g)
t = time.time()
f(x)
compile_s = time.time() - t

# %%
import time
import torch

f = torch.compile(g)
for i in range(9):
    t = time.time()
    f(x)
    times.append(time.time() - t)

# %%
import time
import torch

t = time.time()
f = torch.compile(g)
print(time.time() - t)

# %%
import re
import time

t = time.time()
f = re.compile(p)
f(x)
d = time.time() - t

# %%
import time
import torch

f = torch.compile(g)
t = time.time()
f(x)  # expect: timing-includes-compilation
print(time.time() - t)

# %%
import time
import torch

@torch.compile
def f(x):
    return x

def bench(x):
    t0 = time.perf_counter()
    for _ in range(100):
        f(x)  # expect: timing-includes-compilation
    t1 = time.perf_counter()
    return t1 - t0

# %%
from time import monotonic
import torch

t = monotonic()
m = torch.compile(m, mode='max-autotune')
y = m(x)  # expect: timing-includes-compilation
y = m(x)
d = monotonic() - t

# %%
m = torch.compile(m)
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
for _ in range(9):
    m(x)  # expect: timing-includes-compilation
end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end))
