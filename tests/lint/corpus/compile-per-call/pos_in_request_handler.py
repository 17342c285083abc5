# each request compiles a new function
import torch


class Service:
    def __init__(self, model):
        self.model = model.eval()

    @torch.inference_mode()
    def predict(self, x):
        return torch.compile(self.model)(x)  # expect: compile-per-call|recompilation-trap
