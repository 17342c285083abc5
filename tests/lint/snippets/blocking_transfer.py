# %%
def train(accelerator, model, train_loader):
    model, train_loader = accelerator.prepare(model, train_loader)
    for x in train_loader:
        model(x.to(accelerator.device))

# %%
def start(fabric, data):
    loaders = fabric.setup_dataloaders(torch.utils.data.DataLoader(data))
    train_loader = wrap(loaders)
    for x in train_loader:
        f(x.cuda())

# %%
class Trainer:
    def __init__(self, wrap, train_loader):
        self.train_loader = wrap(train_loader)

    def run(self, model):
        for x in self.train_loader:
            model(x.cuda()).sum().backward()

# %%
def evaluate(accelerator, model, val_loader):
    for x in val_loader:
        accelerator.gather(model(x.to(accelerator.device)))

# %%
def move(loader, other):
    for x in loader:
        x.to(other, True)

# %%
def train(model, loader, device):
    for x, y in loader:
        x = x.to(device, non_blocking=True)
        y = y.cuda(non_blocking=True)
        model(x)

# %%
def train(model, loader):
    for x, y in loader:
        x = x.to(torch.float16).to('cpu')

# %%
x = torch.zeros(3).to('cuda')
for i in range(3):
    y = x.to('cuda')

# %%
import torch
from torch.utils.data import DataLoader

loader = DataLoader(data, pin_memory=True)
for x in loader:
    x = x.cuda(non_blocking=True)
    y = x.to('cuda')

# %%
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

def train(model, train_loader):
    for step, (x, y) in enumerate(train_loader):
        x = x.to(device)  # expect: blocking-transfer
        y = y.cuda()  # expect: blocking-transfer
        model(x)

# %%
import torch
from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=8)
for x in loader:
    x = x.cuda(non_blocking=True)  # expect: blocking-transfer

# %%
for batch in dataloader:
    batch = {k: v.to('cuda') for k, v in batch.items()}  # expect: blocking-transfer
    out = model(**batch)

# %%
for batch in dataloader:
    batch = {k: v.to('mps') for k, v in batch.items()}
    out = model(**batch)
