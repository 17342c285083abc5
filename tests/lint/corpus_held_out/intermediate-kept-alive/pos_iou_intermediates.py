# two (n, m, 2) corners are kept for the rest of the function
import torch


@torch.no_grad()
def assign(boxes: torch.Tensor, anchors: torch.Tensor, model, images):
    lt = torch.max(boxes[:, None, :2], anchors[None, :, :2])  # expect: intermediate-kept-alive+2
    rb = torch.min(boxes[:, None, 2:], anchors[None, :, 2:])  # allow: intermediate-kept-alive
    overlap = (rb - lt).clamp(min=0).prod(-1)  # allow: intermediate-kept-alive
    best = overlap.argmax(dim=0)
    features = model(images)
    embedded = model.neck(features)
    return embedded, best
