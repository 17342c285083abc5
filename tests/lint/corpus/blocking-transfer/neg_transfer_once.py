# the whole data set moves once, before the loop
import torch
import torch.nn.functional as F


def train(model, features: torch.Tensor, labels: torch.Tensor, optimizer, device, epochs):
    features = features.to(device)
    labels = labels.to(device)
    for _ in range(epochs):
        for i in range(0, features.size(0), 256):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(features[i : i + 256]), labels[i : i + 256])
            loss.backward()
            optimizer.step()
