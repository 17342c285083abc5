# TorchScript is deprecated
import torch
import torchvision

model = torchvision.models.resnet18(weights="DEFAULT").eval()
scripted = torch.jit.script(model)  # expect: torchscript
scripted.save("model.pt")
