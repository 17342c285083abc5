# everything but pinning is set
import torch
from torch.utils.data import DataLoader


class Runner:
    def __init__(self, model, dataset):
        self.model = model.cuda()
        self.loader = DataLoader(  # expect: dataloader-without-pinning+7
            dataset,
            batch_size=256,
            shuffle=True,
            num_workers=16,
            persistent_workers=True,
            drop_last=True,
        )

    def run(self, step):
        for x, y in self.loader:
            step(self.model, x.cuda(), y.cuda())  # expect: blocking-transfer
