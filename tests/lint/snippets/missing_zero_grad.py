# %%
def train(model, loader, criterion, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

# %%
def train(model, loader, criterion, optimizer):
    for x, y in loader:
        for p in model.parameters():
            p.grad = None
        criterion(model(x), y).backward()
        optimizer.step()

# %%
def train(model, loader, criterion, optimizer, clear_gradients):
    for x, y in loader:
        clear_gradients(model)
        criterion(model(x), y).backward()
        optimizer.step()

# %%
for seed in range(3):
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3)).sum().backward()
    optimizer.step()

# %%
import torch
from training import finish_step

def train(model, loader, criterion, optimizer):
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()
        finish_step(optimizer)

# %%
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())

    def start(self):
        self.optimizer.zero_grad()

    def train(self, loader):
        for x, y in loader:
            self.start()
            self.model(x, y).backward()
            self.optimizer.step()

# %%
def train(model, loader, criterion, optimizer):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # expect: missing-zero-grad

# %%
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(100):
    model(torch.ones(3)).sum().backward()
    optimizer.step()  # expect: missing-zero-grad
    scheduler.step()

# %%
def train(model, loader, scaler):
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in loader:
        scaler.scale(model(x, y)).backward()
        scaler.step(optimizer)  # expect: missing-zero-grad
        scaler.update()
