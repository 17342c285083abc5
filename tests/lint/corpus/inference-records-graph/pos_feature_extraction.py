# features are kept with their graphs until memory runs out
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader


def extract(dataset, path):
    backbone = torchvision.models.resnet50(weights="DEFAULT")
    backbone.fc = nn.Identity()
    backbone.eval()
    backbone.to("cuda")
    loader = DataLoader(dataset, batch_size=64, num_workers=8, pin_memory=True)
    features = []
    for images, _ in loader:  # expect: inference-records-graph+1
        features.append(backbone(images.to("cuda", non_blocking=True)))  # allow: loss-kept-with-graph
    torch.save(torch.cat(features), path)
