# a second loss goes through the same trunk
import torch


def train(trunk, head_a, head_b, loader, optimizer):
    for x, a, b in loader:
        shared = trunk(x)
        first = torch.nn.functional.mse_loss(head_a(shared), a)
        second = torch.nn.functional.mse_loss(head_b(shared), b)
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
