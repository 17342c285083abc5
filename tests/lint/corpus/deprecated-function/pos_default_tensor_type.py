# set_default_tensor_type is deprecated since 2.1
import torch

if torch.cuda.is_available():
    torch.set_default_tensor_type("torch.cuda.FloatTensor")  # expect: deprecated-function


def noise(n):
    return torch.randn(n)
