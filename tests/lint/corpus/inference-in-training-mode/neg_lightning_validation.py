# Lightning sets the mode before validation_step
import lightning as L
import torch
import torchvision
import torchmetrics


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torchvision.models.resnet18()
        self.metric = torchmetrics.Accuracy("multiclass", num_classes=1000)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.metric.update(self.net(x), y)

    def on_validation_epoch_end(self):
        self.log("accuracy", self.metric.compute())
