# the model is fixed, the input is trained
import torch
from torch import nn


def style_transfer(features: nn.Module, content: torch.Tensor, target: torch.Tensor, steps: int):
    features.eval()
    for parameter in features.parameters():
        parameter.requires_grad_(False)
    image = content.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([image])
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(features(image), target)
            loss.backward()
            return loss

        optimizer.step(closure)
    return image.detach()
