# `from torch import amp` is the present namespace
from torch import amp


def predict(model, x, device_type):
    model.eval()
    with amp.autocast(device_type):
        return model(x)
