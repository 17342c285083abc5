# names of another `torch`-like object
from backend import get_backend

torch = get_backend("torch_compat")


def run(x):
    return torch.turbo(torch.compiler.optimize(x))
