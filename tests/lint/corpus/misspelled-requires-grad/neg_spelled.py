# spelled as it is
import torch


def freeze(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.head.requires_grad_(True)
