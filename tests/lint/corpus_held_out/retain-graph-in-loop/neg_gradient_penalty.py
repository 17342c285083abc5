# torch.autograd.grad needs the graph once more
import torch


def train(critic, loader, optimizer):
    for x in loader:
        x.requires_grad_()
        score = critic(x).mean()
        optimizer.zero_grad()
        score.backward(retain_graph=True)
        (slope,) = torch.autograd.grad(score, x, create_graph=True)
        slope.norm().backward()
        optimizer.step()
