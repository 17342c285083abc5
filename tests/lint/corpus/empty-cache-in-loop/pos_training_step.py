# training_step runs for every batch
import lightning as L
import torch


class Lit(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, batch_idx):
        loss = self.net(batch).mean()
        torch.cuda.empty_cache()  # expect: empty-cache-in-loop
        return loss
