# train(False) is eval()
import timm
import torch

model = timm.create_model("resnet18", pretrained=True)
model.train(False)
with torch.inference_mode():
    for _ in range(10):
        model(torch.randn(8, 3, 224, 224))
