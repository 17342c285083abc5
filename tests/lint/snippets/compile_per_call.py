# %%
model = torch.compile(model)

# %%
@torch.compile
def f(x):
    return x

# %%
for block in model.blocks:
    block.forward = torch.compile(block.forward)

# %%
for mode in ('default', 'max-autotune'):
    fast = torch.compile(model, mode=mode)
    bench(fast)

# %%
for name in names:
    model = make(name)
    bench(torch.compile(model))

# %%
class A(torch.nn.Module):
    def forward(self, x):
        if self.fast is None:
            self.fast = torch.compile(self.body)
        return self.fast(x)

# %%
import functools
import torch

@functools.cache
def fast(mode):
    return torch.compile(f, mode=mode)

# %%
def main():
    y = torch.compile(model)(x)

# %%
import re

for line in lines:
    re.compile(pattern).match(line)

# %%
class A(torch.nn.Module):
    def forward(self, x):
        f = torch.compile(self.body)  # expect: compile-per-call
        return f(x)

# %%
for x, y in loader:
    fast = torch.compile(model)  # expect: compile-per-call
    loss = fast(x)

# %%
for i in range(100):
    y = torch.compile(f)(x)  # expect: compile-per-call

# %%
class Service:
    def answer(self, x):
        return torch.compile(self.model)(x)  # expect: compile-per-call

# %%
class Service:
    def answer(self, x):
        if "it is None" in self.name:
            return torch.compile(self.model)(x)  # expect: compile-per-call

# %%
layers = torch.nn.ModuleList([torch.compile(Layer()) for _ in range(64)])

# %%
class A(torch.nn.Module):
    def forward(self, x):
        for layer in [torch.compile(Layer(x)) for _ in range(2)]:  # expect: compile-per-call
            x = layer(x)
        return x

# %%
def main(model, loader):
    for x in loader:
        head = torch.compile(Head())  # expect: compile-per-call
        model(x).mean().backward()

# %%
for _ in range(100):
    y = torch.compile(make())(x)  # expect: compile-per-call
