# freezing and optimizing a scripted module
import torch


def prepare(module):
    scripted = torch.jit.script(module.eval())  # expect: torchscript
    frozen = torch.jit.freeze(scripted)  # expect: torchscript
    return torch.jit.optimize_for_inference(frozen)  # expect: torchscript
