# the present functions
import torch


def orthogonalize(a):
    q, r = torch.linalg.qr(a)
    return q * torch.sign(torch.diagonal(r))


def whiten(cov):
    return torch.linalg.cholesky(cov)


def length(x):
    return torch.linalg.vector_norm(x, dim=-1)
