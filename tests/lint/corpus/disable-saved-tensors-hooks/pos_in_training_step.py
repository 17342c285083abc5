# "disable saved tensors" misunderstood in Lightning
import lightning as L
import torch


class Lit(L.LightningModule):
    def __init__(self, net, criterion):
        super().__init__()
        self.net, self.criterion = net, criterion

    def training_step(self, batch, batch_idx):
        x, y = batch
        with torch.autograd.graph.disable_saved_tensors_hooks("do not save activations"):  # expect: disable-saved-tensors-hooks
            return self.criterion(self.net(x), y)
