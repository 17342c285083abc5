# through an alias of the module
import torch.autograd.graph as graph


class Trainer:
    def training_step(self, model, x, y, criterion):
        with graph.disable_saved_tensors_hooks("reduce memory usage"):  # expect: disable-saved-tensors-hooks
            out = model(x)
            return criterion(out, y)
