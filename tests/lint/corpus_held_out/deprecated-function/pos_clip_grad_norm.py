# the name without underscore
import torch


def step(model, loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm(model.parameters(), 1.0)  # expect: deprecated-function
    optimizer.step()
