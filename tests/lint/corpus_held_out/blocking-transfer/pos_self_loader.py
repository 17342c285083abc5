# the loader is an attribute made in the constructor
import torch
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self, model, dataset, optimizer, criterion):
        self.device = torch.device("cuda")
        self.model = model.to(self.device)
        self.optimizer = optimizer
        self.criterion = criterion
        self.loader = DataLoader(dataset, 64, num_workers=8, pin_memory=True, persistent_workers=True)

    def epoch(self):
        self.model.train()
        for x, y in self.loader:
            x = x.to(self.device)  # expect: blocking-transfer
            y = y.to(self.device)  # expect: blocking-transfer
            self.optimizer.zero_grad()
            self.criterion(self.model(x), y).backward()
            self.optimizer.step()
