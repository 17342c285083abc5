# MAML: the outer loss needs the sum of task losses
import torch


def outer_step(model, tasks, optimizer, inner_loss):
    meta_loss = 0.0
    for support, query in tasks:
        fast = torch.func.functional_call
        grads = torch.autograd.grad(inner_loss(model, support), list(model.parameters()), create_graph=True)
        names = [name for name, _ in model.named_parameters()]
        moved = {n: p - 0.01 * g for n, p, g in zip(names, model.parameters(), grads)}
        meta_loss += (fast(model, moved, (query[0],)) - query[1]).square().mean()
    optimizer.zero_grad()
    meta_loss.backward()
    optimizer.step()
