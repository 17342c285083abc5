# operators are found at run time
import torch


def nms(boxes, scores):
    keep = torch.ops.torchvision.nms(boxes, scores, 0.5)
    return torch.ops.my_extension.gather_rows(boxes, keep)
