# timm.create_model returns a model in training mode
import timm
import torch

model = timm.create_model("efficientnet_b0", pretrained=True)
batch = torch.randn(8, 3, 224, 224)
with torch.inference_mode():
    for _ in range(10):  # expect: inference-in-training-mode+1
        logits = model(batch)
