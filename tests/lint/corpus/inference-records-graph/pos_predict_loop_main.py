# a script predicts with a loaded model and records a graph for each batch
import torch
import torchvision
from PIL import Image

model = torchvision.models.resnet50(weights="DEFAULT").cuda()
model.eval()
preprocess = torchvision.models.ResNet50_Weights.DEFAULT.transforms()
labels = []
for path in open("files.txt").read().split():  # expect: inference-records-graph+2
    x = preprocess(Image.open(path)).unsqueeze(0).cuda(non_blocking=True)
    labels.append(model(x).argmax(1))
print(torch.cat(labels).tolist())
