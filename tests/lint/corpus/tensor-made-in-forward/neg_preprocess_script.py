# images are turned into tensors while preparing, outside of any model
import numpy as np
import torch
from PIL import Image


def load_images(paths: list[str]) -> torch.Tensor:
    tensors = []
    for path in paths:
        pixels = np.asarray(Image.open(path).convert("RGB"))
        tensors.append(torch.from_numpy(pixels).permute(2, 0, 1))
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    return (torch.stack(tensors).float() / 255 - mean).contiguous()
