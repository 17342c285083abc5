# a function that builds and returns the compiled model
import torch


def build(factory, compile_model: bool):
    model = factory()
    if compile_model:
        model = torch.compile(model, mode="reduce-overhead")
    return model
