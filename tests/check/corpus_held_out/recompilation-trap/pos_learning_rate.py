# a float that changes is part of the guard
import torch


def update(p, g, lr):
    return p - lr * g


fast_update = torch.compile(update)


def descend(p, gradient, steps):
    for step in range(steps):
        lr = 0.1 / (1 + step)
        p = fast_update(p, gradient(p), lr)  # expect: recompilation-trap
    return p
