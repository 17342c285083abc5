# Python's range, einops' and a method called range
import torch


class Axis:
    def range(self, a, b):
        return list(range(a, b))


def ticks(axis: Axis, n: int):
    return torch.tensor([float(i) for i in range(n)] + axis.range(0, 3))
