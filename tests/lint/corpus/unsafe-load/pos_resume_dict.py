# a resume function that reads optimizer and epoch too
import os

import torch


def resume(path, model, optimizer):
    if not os.path.isfile(path):
        return 0
    checkpoint = torch.load(path, map_location=lambda storage, _: storage)  # expect: unsafe-load
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["epoch"]
