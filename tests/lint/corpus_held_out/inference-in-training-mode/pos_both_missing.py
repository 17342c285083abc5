# neither eval() nor no_grad
import torch
import torchvision

detector = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights="DEFAULT")
detector.to("cuda")
segmenter = torchvision.models.segmentation.fcn_resnet50(weights="DEFAULT").to("cuda")
segmenter.eval()

outputs = []
for frame in torch.load("clip.pt", weights_only=True):  # expect: inference-in-training-mode+2, inference-records-graph+3
    frame = frame.to("cuda", non_blocking=True)
    boxes = detector([frame])
    outputs.append(boxes)  # allow: loss-kept-with-graph
