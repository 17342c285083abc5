# no broadcast result exists: cdist works in one call
import torch


@torch.inference_mode()
def predict(x, centers, y, gamma):
    kernel = torch.exp(-gamma * torch.cdist(x, centers).square())
    gram = kernel.T @ kernel
    weights = torch.linalg.solve(gram, kernel.T @ y)
    return kernel @ weights
