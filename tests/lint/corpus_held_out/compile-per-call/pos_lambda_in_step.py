# a lambda is a new function at each step
import torch


class Trainer:
    def training_step(self, batch, model, target):
        loss_fn = torch.compile(lambda a, b: (a - b).square().mean())  # expect: compile-per-call|recompilation-trap
        loss = loss_fn(model(batch), target)
        loss.backward()
        return loss.detach()
