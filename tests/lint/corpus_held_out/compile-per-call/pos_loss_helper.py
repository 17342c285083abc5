# a helper called at each step compiles a lambda of its own
import torch


def smooth_l1(pred, target, beta):
    fn = torch.compile(lambda a, b: torch.nn.functional.smooth_l1_loss(a, b, beta=beta))  # expect: compile-per-call|recompilation-trap
    return fn(pred, target)


def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        smooth_l1(model(x), y, 0.1).backward()
        optimizer.step()
