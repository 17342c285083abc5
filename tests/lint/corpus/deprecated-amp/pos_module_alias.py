# import torch.cuda.amp as amp
import torch.cuda.amp as amp


class Engine:
    def __init__(self, model):
        self.model = model
        self.scaler = amp.GradScaler(enabled=True)  # expect: deprecated-amp

    def step(self, x):
        with amp.autocast(enabled=True):  # expect: deprecated-amp
            return self.model(x)
