# a notebook's prediction cell: batch statistics are used and changed
import torch
import torchvision

net = torchvision.models.segmentation.deeplabv3_resnet50(weights="DEFAULT")
net = net.to("cuda")
frames = torch.load("frames.pt", weights_only=True)
masks = []
with torch.inference_mode():
    for i in range(0, len(frames), 8):  # expect: inference-in-training-mode+2
        part = frames[i : i + 8].to("cuda", non_blocking=True)
        masks.append(net(part)["out"].argmax(1))
torch.save(torch.cat(masks), "masks.pt")
