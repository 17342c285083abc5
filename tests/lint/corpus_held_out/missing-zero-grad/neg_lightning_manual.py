# the hooks of a trainer in another file may clear
import torch
from framework import Loop


class Training(Loop):
    def run(self, model, batches):
        optimizer = torch.optim.Adam(model.parameters())
        for batch in batches:
            self.prepare_step(batch)
            model(batch).sum().backward()
            optimizer.step()
