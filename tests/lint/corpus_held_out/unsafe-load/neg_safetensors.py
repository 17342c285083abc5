# safetensors
import torch
from safetensors.torch import load, load_file


def resume(model: torch.nn.Module, path, data):
    model.load_state_dict(load_file(path))
    return load(data)
