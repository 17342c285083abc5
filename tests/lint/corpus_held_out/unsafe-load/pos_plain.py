# torch.load may execute code of the file on torch before 2.6
import torch


def resume(model, path):
    state = torch.load(path, map_location="cpu")  # expect: unsafe-load
    model.load_state_dict(state["model"])
