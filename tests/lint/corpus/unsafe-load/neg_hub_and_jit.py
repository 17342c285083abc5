# other loaders
import torch


def backbone():
    state = torch.hub.load_state_dict_from_url("https://example.org/w.pt", weights_only=True)
    program = torch.export.load("model.pt2")
    return state, program
