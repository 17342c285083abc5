"""Snippets of the rule ``unsafe-load``."""

valid = (
    "torch.load(path, weights_only=True)",
    "torch.load(path, map_location='cpu', weights_only=False)",
    "torch.load(path, **options)",
    """
    import json

    json.load(file)
    """,
    """
    if TORCH_VERSION >= (2, 6):
        torch.load(path)
    """,
    """
    import numpy as np

    np.load(path)
    model.load(path)
    """,
)
invalid = (
    "state = torch.load('x.pt')  # here",
    "model.load_state_dict(torch.load(path, map_location='cpu')['model'])  # here",
    """
    from torch import load

    load(path)  # here
    """,
    """
    import torch, pickle

    torch.load(path, 'cpu', pickle)  # here
    """,
)
