# adversarial examples need the gradient, though in eval mode
import torch
import torch.nn.functional as F


def fgsm(model, loader, epsilon, device):
    model.eval()
    adversarial = []
    for x, y in loader:
        x = x.to(device, non_blocking=True).requires_grad_()
        y = y.to(device, non_blocking=True)
        loss = F.cross_entropy(model(x), y)
        (grad,) = torch.autograd.grad(loss, x)
        adversarial.append((x + epsilon * grad.sign()).clamp(0, 1).detach())
    return torch.cat(adversarial)
