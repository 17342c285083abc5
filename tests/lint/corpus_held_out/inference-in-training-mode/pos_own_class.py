# own class with dropout, used for prediction as it was built
import torch
from torch import nn


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.3))
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.body(x))


@torch.inference_mode()
def main(batches):
    scorer = Scorer()
    scorer.load_state_dict(torch.load("scorer.pt", weights_only=True))
    results = []
    for batch in batches:  # expect: inference-in-training-mode+1
        results.append(scorer(batch))
    return torch.cat(results)
