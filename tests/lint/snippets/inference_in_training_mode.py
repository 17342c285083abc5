# %%
@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    for x in loader:
        out = model(x)

# %%
@torch.no_grad()
def evaluate(model, loader):
    for x in loader:
        out = model(x)

model = torch.hub.load('a', 'b').eval()
evaluate(model, loader)

# %%
def train(model, loader, criterion):
    for x, y in loader:
        criterion(model(x), y).backward()

# %%
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained('x')
with torch.no_grad():
    out = model(ids)

# %%
def mc_dropout(model, loader):
    model.train()
    with torch.no_grad():
        return [model(x) for x in loader]

# %%
@torch.no_grad()
def evaluate(model, loader):
    return [model(x) for x in loader]

# %%
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
with torch.no_grad():
    out = model(x)

# %%
import timm
import torch

def load(name):
    model = timm.create_model(name)
    return model.eval()

model = load('resnet50')
with torch.no_grad():
    out = model(x)

# %%
def train(model, loader, criterion):
    model.train()
    for x, y in loader:
        criterion(model(x), y).backward()

@torch.no_grad()
def evaluate(model, loader):
    for x in loader:
        out = model(x)  # expect: inference-in-training-mode

# %%
import torch
import torchvision

model = torchvision.models.resnet50()
with torch.inference_mode():
    out = model(x)  # expect: inference-in-training-mode

# %%
def run(model, train_loader, val_loader, criterion):
    for epoch in range(3):
        model.train()
        for x, y in train_loader:
            criterion(model(x), y).backward()
        with torch.no_grad():
            for x, y in val_loader:
                out = model(x)  # expect: inference-in-training-mode
