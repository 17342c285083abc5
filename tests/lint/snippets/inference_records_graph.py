# %%
import torch
from mine import smart_inference_mode

@smart_inference_mode()
def run(model, loader):
    model.eval()
    for x in loader:
        yield model(x.cuda())

# %%
def quietly(function):
    def inner(*args):
        with torch.no_grad():
            return function(*args)
    return inner

@quietly
def run(model, loader):
    model.eval()
    for x in loader:
        yield model(x.cuda())

# %%
import torch
from mine import evaluation_mode

def run(model, loader):
    with evaluation_mode(model):
        for x in loader:
            print(model(x.cuda()).shape)

# %%
def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            out = model(x)

# %%
@torch.inference_mode()
def evaluate(model, loader):
    return [model(x) for x in loader]

# %%
def train(model, loader, criterion, optimizer):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()

# %%
def step(model, loader, criterion):
    losses = []
    for x, y in loader:
        losses.append(criterion(model(x), y))
    torch.stack(losses).sum().backward()

# %%
def _run(model, loader):
    for x in loader:
        model(x)

def evaluate(model, loader):
    with torch.no_grad():
        _run(model, loader)

# %%
torch.set_grad_enabled(False)
for x in loader:
    y = model(x)

# %%
import torch
import torchvision

model = torchvision.models.resnet18().eval()
for image in images:
    image.requires_grad_()
    (slope,) = torch.autograd.grad(model(image).sum(), image)

# %%
class Decoding:
    def generate(self, ids):
        for _ in range(9):
            ids = self.model(ids)
        return ids

# %%
def run(layers, x):
    for layer in layers:
        x = layer(x)
    return x

# %%
import functools

def timed(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

@timed
def evaluate(model, loader):
    model.eval()
    for x in loader:
        print(model(x.cuda()).shape)  # expect: inference-records-graph

# %%
import torch
from tqdm import tqdm

def evaluate(model, loader):
    model.eval()
    with tqdm(loader) as bar, torch.autocast("cuda"):
        for x in bar:
            print(model(x.cuda()).shape)  # expect: inference-records-graph

# %%
def evaluate(model, loader):
    model.eval()
    for x, y in loader:
        out = model(x)  # expect: inference-records-graph
        print(len(out))

# %%
model.eval()
for batch in loader:
    out = model(**batch)  # expect: inference-records-graph

# %%
def run(model, train_loader, val_loader, criterion, optimizer):
    for epoch in range(3):
        for x, y in train_loader:
            criterion(model(x), y).backward()
            optimizer.step()
        for x, y in val_loader:
            out = model(x)  # expect: inference-records-graph

# %%
import torch
import timm

class Worker:
    def __init__(self, queue):
        self.queue = queue
        self.model = timm.create_model('resnet50').eval()

    def run(self):
        while True:
            x, reply = self.queue.get()
            reply.put(self.model(x))  # expect: inference-records-graph

# %%
import torch
import torchvision

model = torchvision.models.resnet18().cuda()
for path in paths:
    out = model(read(path).cuda())  # expect: inference-records-graph

# %%
# no p.requires_grad = False here
def evaluate(model, loader):
    model.eval()
    for x, y in loader:
        print(model(x).shape)  # expect: inference-records-graph
