# the value is configured
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Encoder(nn.Module):
    def __init__(self, layers, reentrant: bool = False):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return checkpoint_sequential(list(self.layers), 2, x, use_reentrant=False)
