# gradients are switched off for the whole script
import torch
import torchvision

torch.set_grad_enabled(False)
net = torchvision.models.mobilenet_v3_small(weights="DEFAULT").eval()
frames = torch.load("frames.pt", weights_only=True)
scores = []
for frame in frames:
    scores.append(net(frame.unsqueeze(0)))
torch.save(torch.cat(scores), "scores.pt")
