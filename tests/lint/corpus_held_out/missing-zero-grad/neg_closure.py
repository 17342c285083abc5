# L-BFGS calls a closure that clears
import torch


def minimise(points, energy):
    optimizer = torch.optim.LBFGS([points], lr=1)

    def closure():
        optimizer.zero_grad()
        value = energy(points)
        value.backward()
        return value

    for _ in range(100):
        optimizer.step(closure)
