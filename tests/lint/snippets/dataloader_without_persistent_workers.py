# %%
from torch.utils.data import DataLoader

l = DataLoader(d, num_workers=4)
for x in l:
    f(x)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d)
for e in range(9):
    for x in l: f(x)

# %%
from torch.utils.data import DataLoader

for e in range(9):
    l = DataLoader(d, num_workers=4)
    for x in l:
        f(x)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, num_workers=4, persistent_workers=True)
for e in range(9):
    for x in l:
        f(x)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, num_workers=n)
for e in range(9):
    for x in l:
        f(x)

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, num_workers=4)
for e in range(9):
    print(len(l))

# %%
from torch.utils.data import DataLoader

l = DataLoader(d, num_workers=4)  # expect: dataloader-without-persistent-workers
for e in range(9):
    for i, x in enumerate(l):
        f(x)

# %%
from torch.utils.data import DataLoader

def main(d):
    l = DataLoader(d, num_workers=4, persistent_workers=False)  # expect: dataloader-without-persistent-workers
    for epoch in range(9):
        train(model, l, epoch)

# %%
import os
from torch.utils.data import DataLoader

class A:
    def __init__(self, d):
        self.l = DataLoader(d, num_workers=os.cpu_count())  # expect: dataloader-without-persistent-workers

    def fit(self):
        while not self.done:
            for x in self.l:
                f(x)
