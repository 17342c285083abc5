# traced for C++
import torch


def export(model, path):
    model.eval()
    example = torch.rand(1, 3, 224, 224)
    traced = torch.jit.trace(model, example)  # expect: torchscript
    traced.save(path)
