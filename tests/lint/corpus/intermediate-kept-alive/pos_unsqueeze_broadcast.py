# an outer product by unsqueeze is not needed after its reduction
import torch


@torch.inference_mode()
def similarity_report(queries: torch.Tensor, keys: torch.Tensor, model):
    products = queries.unsqueeze(1) * keys.unsqueeze(0)  # expect: intermediate-kept-alive+1
    scores = products.sum(-1)  # allow: intermediate-kept-alive
    best = scores.topk(10, dim=1).indices
    gathered = keys[best.flatten()].view(*best.shape, -1)
    refined = model(gathered)
    return refined.softmax(-1)
