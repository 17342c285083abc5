# Python numbers become float32
import torch


def constants():
    mean = torch.tensor([0.485, 0.456, 0.406])
    grid = torch.linspace(0, 1, 100)
    return mean, grid, torch.full((3,), 0.5)
