# uint8 divided by 255 is float64 in NumPy
import cv2
import torch


def read(path: str) -> torch.Tensor:
    image = cv2.imread(path)
    image = image[:, :, ::-1].transpose(2, 0, 1) / 255.0
    return torch.from_numpy(image.copy())  # expect: float64-by-accident
