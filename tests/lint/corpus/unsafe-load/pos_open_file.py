# from a file object
import torch


class Cache:
    def get(self, path):
        with open(path, "rb") as file:
            return torch.load(file)  # expect: unsafe-load
