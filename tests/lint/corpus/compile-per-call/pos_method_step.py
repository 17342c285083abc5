# each optimizer step compiles again
import torch


class Engine:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def _update(self):
        self.optimizer.step()

    def training_step(self, batch):
        loss = self.model(batch).mean()
        loss.backward()
        torch.compile(self._update)()  # expect: compile-per-call|recompilation-trap
        self.optimizer.zero_grad()
