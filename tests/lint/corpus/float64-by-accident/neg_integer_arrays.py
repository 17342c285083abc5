# arrays of integers and bytes
import numpy as np
import torch
from PIL import Image


def read(path):
    pixels = torch.from_numpy(np.array(Image.open(path)))
    ids = torch.from_numpy(np.arange(10))
    mask = torch.from_numpy(np.zeros((4, 4), dtype=bool))
    return pixels, ids, mask
