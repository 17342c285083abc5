# identity built on the CPU, batched, then moved
import torch
from torch import nn


class TNet(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.k = k
        self.fc = nn.Linear(1024, k * k)

    def forward(self, x):
        out = self.fc(x).view(-1, self.k, self.k)
        eye = torch.eye(self.k).unsqueeze(0).repeat(x.size(0), 1, 1)  # expect: copy-to-device-in-forward|tensor-made-in-forward+2
        if x.is_cuda:
            eye = eye.cuda()
        return out + eye
