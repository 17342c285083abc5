# the same on the CPU
import torch


def run(model, x):
    with torch.cpu.amp.autocast(dtype=torch.bfloat16):  # expect: deprecated-amp
        return model(x)
