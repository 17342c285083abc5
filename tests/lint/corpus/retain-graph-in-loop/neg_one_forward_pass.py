# saliency of each class: every backward pass goes through the graph of the one forward pass before the loop
import torch


def saliency(model, images, classes):
    images.requires_grad_()
    model.eval()
    maps = []
    logits = model(images)
    for c in range(classes):
        images.grad = None
        score = logits[0, c]
        score.backward(retain_graph=True)
        maps.append(images.grad.abs().clone())
    return torch.stack(maps)
