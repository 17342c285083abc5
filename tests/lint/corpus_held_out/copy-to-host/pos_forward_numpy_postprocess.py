# forward leaves the device for NumPy
import cv2
import torch
from torch import nn


class Refiner(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.sigmoid(self.body(x))
        host = mask.detach().cpu().numpy()  # expect: copy-to-host
        blurred = cv2.blur(host[0, 0], (5, 5))
        return mask * float(blurred.mean())
