# the optimizer is an attribute, and no method of the class clears
import torch


class Trainer:
    def __init__(self, network, lr):
        self.network = network
        self.optim = torch.optim.AdamW(network.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optim, 1000)

    def fit(self, batches):
        self.network.train()
        for x, y in batches:
            loss = torch.nn.functional.mse_loss(self.network(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self.optim.step()  # expect: missing-zero-grad
            self.scheduler.step()
