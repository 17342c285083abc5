"""Between host and device."""

import numpy as np
import torch
from torch import nn

import togi


def constant_from_a_list(x):
    mean = torch.tensor([0.1, 0.2, 0.3, 0.4], device=x.device)  # sync
    return x - mean


def constant_as_a_buffer():
    class Normalize(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3, 0.4]))

        def forward(self, x):
            return x - self.mean

    return togi.Subject(Normalize(), torch.ones(6, 4))


def constant_as_an_attribute():
    class Normalize(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.tensor([0.1, 0.2, 0.3, 0.4])

        def forward(self, x):
            return x - self.mean.to(x.device)  # sync

    return togi.Subject(Normalize(), torch.ones(6, 4))


def moved_although_there(x):
    return x.to(x.device).to("cuda").cuda() + x.to(x)


def change_of_dtype(x):
    return x.to(torch.float16).float().type(torch.float64).to(torch.float32)


def cpu(x):
    return x.cpu().sum()  # sync


def to_cpu_by_name(x):
    y = x.to("cpu")  # sync
    return y.sum().item()


def host_tensor_to_the_device(x):
    positions = torch.arange(4.0)
    return x + positions.cuda()  # sync


def arange_on_the_device(x):
    return x + torch.arange(4.0, device=x.device) + torch.arange(4.0, device="cuda")


def pageable_without_blocking(x):
    positions = torch.arange(4.0)
    return x + positions.to("cuda", non_blocking=True)


def pinned_without_blocking(x):
    positions = torch.arange(4.0).pin_memory()
    return x + positions.to("cuda", non_blocking=True)


def pinned_with_blocking(x):
    positions = torch.arange(4.0).pin_memory()
    return x + positions.to("cuda")  # sync


def to_the_host_without_blocking(x):
    return x.to("cpu", non_blocking=True)


def into_pageable_memory(x):
    target = torch.empty(x.shape)
    target.copy_(x)  # sync
    return target


def into_pageable_memory_without_blocking(x):
    target = torch.empty(x.shape)
    target.copy_(x, non_blocking=True)  # sync unseen
    return target


def into_device_memory(x):
    target = torch.empty_like(x)
    target.copy_(x)
    return target


def from_numpy(x):
    table = torch.from_numpy(np.ones(4, dtype=np.float32))
    return x + table.to(x.device)  # sync


def number_from_numpy(x):
    return x * float(np.float32(2.0)) + np.pi


def new_tensor(x):
    return x + x.new_tensor([1.0, 2.0, 3.0, 4.0])  # sync


def new_zeros_and_likes(x):
    return x.new_zeros(4) + torch.zeros_like(x) + x.new_full((4,), 2.0) + torch.empty_like(x).fill_(1.0)


def list_of_device_values(x):
    return torch.tensor([x.sum(), x.mean()])  # sync


def stacking_device_values(x):
    return torch.stack([x.sum(), x.mean()])


def scalar_from_the_host_in_arithmetic(x):
    factor = torch.tensor(2.0)
    return x * factor + factor


def default_device(x):
    with torch.device("cuda"):
        extra = torch.zeros(4) + torch.ones(4)
    return x + extra


def type_as(x):
    weights = torch.ones(4)
    return x * weights.type_as(x)  # sync


def explicit_synchronization(x):
    y = x @ x.T
    torch.cuda.synchronize()  # sync unseen
    return y


def waiting_for_an_event(x):
    event = torch.cuda.Event()
    event.record()
    event.synchronize()  # sync unseen
    return x


def waiting_for_a_stream(x):
    torch.cuda.current_stream().synchronize()  # sync
    return x


def streams_waiting_for_streams(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    return y


def emptying_the_cache(x):
    y = x * 2
    torch.cuda.empty_cache()  # sync unseen
    return y


def asking_for_memory_in_use(x):
    if torch.cuda.is_available() and torch.cuda.memory_allocated() >= 0 and torch.cuda.device_count() > 0:
        x = x + 1
    return x
