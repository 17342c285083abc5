# through the module
import torch
import torch.utils.checkpoint


class Layer(torch.nn.Module):
    def __init__(self, inner, save: bool):
        super().__init__()
        self.inner = inner
        self.save = save

    def forward(self, x, mask=None):
        if self.save and self.training:
            return torch.utils.checkpoint.checkpoint(self.inner, x, mask)  # expect: checkpoint-without-use-reentrant
        return self.inner(x, mask)
