# %%
def train(model, loader, criterion, every):
    for step, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        if step % every == 0:
            total = loss
        else:
            total = total + loss
        if (step + 1) % every == 0:
            total.backward()

# %%
def train(model, loader, criterion):
    total = None
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()

# %%
def train(model, loader, criterion):
    total = 0
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        total += loss.detach()
        total += loss.item() + float(loss)
    return total

# %%
def train(model, batches, criterion, optimizer):
    for xs in batches:
        total = 0
        for x, y in xs:
            total += criterion(model(x), y)
        total.backward()
        optimizer.step()

# %%
@torch.no_grad()
def evaluate(model, loader, criterion):
    total = 0
    for x, y in loader:
        total += criterion(model(x), y)
    return total

# %%
import torch
from torch import nn

class Loss(nn.Module):
    def forward(self, outputs, y):
        loss = 0
        for x in outputs:
            loss += nn.functional.mse_loss(x, y)
        return loss

# %%
def objective(model, loader, criterion):
    total = 0
    for x, y in loader:
        total = total + criterion(model(x), y)
    return total

# %%
class Meter:
    def update(self, value):
        value = float(value)
        self.sum += value

def train(model, loader, criterion):
    meter = Meter()
    last = {}
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        meter.update(loss)
        last['loss'] = loss

# %%
def train(model, loader, criterion):
    total = None
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        if total is None:
            total = loss.detach()
        else:
            total = total + loss  # expect: loss-kept-with-graph

# %%
def train(model, loader, criterion):
    sums = {}
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        if "loss" not in sums:
            sums["loss"] = loss.detach()
        else:
            sums["loss"] += loss  # expect: loss-kept-with-graph

# %%
def train(model, loader, criterion):
    for step, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()
        if step == 0:
            smooth = loss.detach()
        else:
            smooth = 0.9 * smooth + 0.1 * loss  # expect: loss-kept-with-graph

# %%
def train(model, loader, criterion, optimizer):
    total, losses = 0, []
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss  # expect: loss-kept-with-graph
        losses.append(loss)  # expect: loss-kept-with-graph
    return total / len(loader)

# %%
def evaluate(model, loader, criterion):
    total = 0
    for x, y in loader:
        total = total + criterion(model(x), y)  # expect: loss-kept-with-graph
    return total

# %%
import torch.nn.functional as F
import lightning as L

class Net(L.LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.losses.append(loss)  # expect: loss-kept-with-graph
        return loss

# %%
class Meter:
    def __init__(self):
        self.sum = 0

    def update(self, value, n=1):
        self.sum += value * n

def train(model, loader, criterion):
    meter = Meter()
    average, sums = None, {}
    for step, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()
        meter.update(loss, len(x))  # expect: loss-kept-with-graph
        average = loss if average is None else 0.9 * average + 0.1 * loss  # expect: loss-kept-with-graph
        sums['loss'] = sums.get('loss', 0) + loss  # expect: loss-kept-with-graph
        sums[step] = loss  # expect: loss-kept-with-graph
