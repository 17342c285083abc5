# ternary and `not` on tensors in training_step
import pytorch_lightning as pl
import torch


class Lit(pl.LightningModule):
    def __init__(self, net, criterion):
        super().__init__()
        self.net = net
        self.criterion = criterion

    def training_step(self, batch, batch_idx):
        x, y = batch
        pred = self.net(x)
        loss = self.criterion(pred, y)
        valid = torch.isfinite(pred).all()
        return loss if valid else None  # expect: branch-on-tensor
