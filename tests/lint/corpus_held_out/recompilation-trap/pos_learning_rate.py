# smooth_l1_loss needs the value of beta: one compilation for each
import torch


def robust_loss(pred, target, beta):
    return torch.nn.functional.smooth_l1_loss(pred, target, beta=beta)


fast_loss = torch.compile(robust_loss)


@torch.no_grad()
def anneal(pred, target, steps):
    total = torch.zeros_like(pred.sum())
    for step in range(steps):
        beta = 1.0 / (1 + step)
        total = total + fast_loss(pred, target, beta)  # expect: recompilation-trap
    return total
