# replaced by torch.linalg
import torch


def orthogonalize(a: torch.Tensor) -> torch.Tensor:
    q, r = torch.qr(a)  # expect: deprecated-function
    return q * torch.sign(torch.diagonal(r))


def whiten(cov):
    return torch.cholesky(cov)  # expect: deprecated-function
