# the (b, n, m, 3) difference stays while a network runs
import torch


@torch.no_grad()
def match_and_refine(source: torch.Tensor, target: torch.Tensor, network) -> torch.Tensor:
    offset = source.unsqueeze(2) - target.unsqueeze(1)  # expect: intermediate-kept-alive+1
    nearest = offset.square().sum(-1).argmin(-1)
    matched = torch.gather(target, 1, nearest.unsqueeze(-1).expand(-1, -1, 3))
    features = network(torch.cat([source, matched], -1))
    weights = features.softmax(1)
    return (weights * matched).sum(1)
