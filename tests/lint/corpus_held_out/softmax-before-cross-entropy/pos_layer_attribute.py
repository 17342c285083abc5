# a softmax layer held by the module
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.project = nn.Linear(width, classes)
        self.activation = nn.Softmax(dim=-1)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, hidden, labels):
        scores = self.activation(self.project(hidden))
        return self.loss(scores, labels)  # expect: softmax-before-cross-entropy
