# invented context managers
import torch


def predict(model, x):
    model.eval()
    with torch.no_gradient():  # expect: nonexistent-function
        return model(x)
