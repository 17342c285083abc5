# removed long ago, it only raises
import torch


def principal(cov: torch.Tensor):
    values, vectors = torch.symeig(cov, eigenvectors=True)  # expect: deprecated-function|nonexistent-function
    return values, vectors
