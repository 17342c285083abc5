# a layer written in NumPy, no torch module
import numpy as np


class Layer:
    def __init__(self, weight):
        self.weight = weight

    def forward(self, x):
        mean = np.array([0.485, 0.456, 0.406])
        return (np.asarray(x) - mean) @ self.weight
