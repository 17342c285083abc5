# torch.func
import torch
from torch.func import functional_call, grad, vmap


def per_sample(model, params, x, y):
    def loss(p, sample, target):
        return torch.nn.functional.mse_loss(functional_call(model, p, (sample,)), target)

    return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
