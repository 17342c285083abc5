# %%
f = torch.compile(g)
for i in range(9):
    x = f(x)

# %%
@torch.compile
def f(x, t):
    return x * t

steps = torch.arange(9)
for i in range(9):
    x = f(x, steps[i])

# %%
f = torch.compile(g, dynamic=True)
for i in range(9):
    x = f(x, i)

# %%
for i in range(9):
    x = f(x, i)

# %%
f = torch.compile(g)
for x, y in loader:
    f(x, y)

# %%
class A(torch.nn.Module):
    def forward(self, x):
        self.n += 1
        return x

# %%
import re

for i, p in enumerate(patterns):
    f = re.compile(p)
    f(i)

# %%
@torch.compile
def f(x, t):
    return x * t

for i in range(9):
    x = f(x, i)  # expect: recompilation-trap

# %%
step = torch.compile(one_step)
for i, x in enumerate(batches):
    x = step(x, t=i / 9)  # expect: recompilation-trap

# %%
class A(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1  # expect: recompilation-trap
        return x * self.n

model = torch.compile(A())

# %%
for i in range(9):
    f = torch.compile(lambda x: x * i)  # expect: recompilation-trap
    f(x)

# %%
model = torch.nn.Linear(3, 3)
model.compile()
for i in range(9):
    x = model(x, i)  # expect: recompilation-trap
