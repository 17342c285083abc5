# a notebook's cell: one print outside of any loop
import torch
import torchvision

model = torchvision.models.resnet18()
model.eval()
with torch.no_grad():
    logits = model(torch.randn(1, 3, 224, 224))
print("top class", logits.argmax(1))
print(logits.softmax(-1))
