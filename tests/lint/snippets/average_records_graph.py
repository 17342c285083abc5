# %%
@torch.no_grad()
def update(ema, model, decay):
    for average, p in zip(ema.parameters(), model.parameters()):
        average.mul_(decay).add_(p, alpha=1 - decay)

# %%
def update(ema, model, decay):
    for average, p in zip(ema.parameters(), model.parameters()):
        average.data.mul_(decay).add_(p.data, alpha=1 - decay)

# %%
def average(ema, model, decay):
    for a, p in zip(ema.parameters(), model.parameters()):
        a.lerp_(p, 1 - decay)

def train(ema, model, loader):
    for x in loader:
        with torch.no_grad():
            average(ema, model, 0.99)

# %%
import torch
from mine import quietly

@quietly
def update(ema, model, decay):
    for a, p in zip(ema.parameters(), model.parameters()):
        a.lerp_(p, 1 - decay)

# %%
def step(model, lr):
    for p in model.parameters():
        p.sub_(lr * p.grad)

# %%
def penalty(model, old):
    loss = 0
    for p, q in zip(model.parameters(), old.parameters()):
        loss = loss + (p - q).square().sum()
    return loss

# %%
def update(shadow, model, decay):
    for name, value in model.state_dict().items():
        shadow[name] = decay * shadow[name] + (1 - decay) * value

# %%
def update(shadow, model, decay):
    for name, p in model.named_parameters():
        shadow[name] = decay * shadow[name] + (1 - decay) * p.detach()

# %%
def update(ema, model, decay):
    for average, p in zip(ema.parameters(), model.parameters()):
        average.mul_(decay).add_(p, alpha=1 - decay)  # expect: average-records-graph

# %%
class Average:
    def __init__(self, model):
        self.shadow = {name: p.clone() for name, p in model.named_parameters()}

    def update(self, model):
        for name, p in model.named_parameters():
            if p.requires_grad:
                self.shadow[name] = 0.99 * self.shadow[name] + 0.01 * p  # expect: average-records-graph

# %%
def update(target, online, tau):
    for t, p in zip(target.parameters(), online.parameters()):
        t.copy_(tau * p + (1 - tau) * t)  # expect: average-records-graph
