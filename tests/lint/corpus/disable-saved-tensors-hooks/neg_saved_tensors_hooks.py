# the hooks that do save memory
import torch


def pack(x):
    return x.to(torch.bfloat16) if x.dtype == torch.float32 else x


def unpack(x):
    return x.float() if x.dtype == torch.bfloat16 else x


def step(model, x, y, criterion):
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = criterion(model(x), y)
    loss.backward()
