# a loop over steps with one backward pass in each
import torch


def fit(model, sample, optimizer, steps):
    step = 0
    while step < steps:
        x, y = sample()
        error = (model(x) - y).square().mean()
        optimizer.zero_grad()
        error.backward(retain_graph=True)  # expect: retain-graph-in-loop
        optimizer.step()
        step += 1
