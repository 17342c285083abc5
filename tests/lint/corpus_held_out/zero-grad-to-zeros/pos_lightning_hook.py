# Lightning's hook, overridden with zeros
import pytorch_lightning as pl


class Model(pl.LightningModule):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)  # expect: zero-grad-to-zeros
