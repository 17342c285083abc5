# compiled on first use and kept
import torch


class Service:
    def __init__(self, model):
        self.model = model.eval()
        self.compiled = None

    @torch.inference_mode()
    def predict(self, x):
        if self.compiled is None:
            self.compiled = torch.compile(self.model)
        return self.compiled(x)
