# imported by name
from torch import load


def read(path):
    return load(path, map_location="cpu")  # expect: unsafe-load
