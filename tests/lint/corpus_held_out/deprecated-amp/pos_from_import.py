# imported by name
from torch.cuda.amp import autocast  # allow: deprecated-amp


def predict(model, x):
    with autocast(enabled=True):  # expect: deprecated-amp
        return model(x)
