"""Models and operators of torchvision and timm, which a machine with a device need not have."""

import timm
import torch
import torchvision
from torch import nn

import togi


def suppression():
    class Boxes(nn.Module):
        def forward(self, boxes, scores):
            kept = torchvision.ops.nms(boxes, scores, 0.5)  # sync unseen before 2.15
            return boxes[kept]

    corners = torch.rand(8, 2)
    return togi.Subject(Boxes(), (torch.cat([corners, corners + 0.5], 1), torch.rand(8)))


def suppression_by_class():
    class Boxes(nn.Module):
        def forward(self, boxes, scores):
            classes = (scores > 0.5).long()
            kept = torchvision.ops.batched_nms(boxes, scores, classes, 0.5)  # sync
            return boxes[kept]

    corners = torch.rand(8, 2)
    return togi.Subject(Boxes(), (torch.cat([corners, corners + 0.5], 1), torch.rand(8)))


def pooling_of_regions():
    class Pool(nn.Module):
        def forward(self, features, boxes):
            return torchvision.ops.roi_align(features, boxes, output_size=3)

    boxes = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0], [0.0, 1.0, 1.0, 5.0, 5.0]])
    return togi.Subject(Pool(), (torch.rand(1, 2, 8, 8), boxes))


def intersection_of_boxes():
    class Overlap(nn.Module):
        def forward(self, boxes):
            return torchvision.ops.box_iou(boxes, boxes).max(dim=1).values

    corners = torch.rand(8, 2)
    return togi.Subject(Overlap(), torch.cat([corners, corners + 0.5], 1))


def small_boxes_removed():
    class Filter(nn.Module):
        def forward(self, boxes):
            kept = torchvision.ops.remove_small_boxes(boxes, 0.1)  # sync
            return boxes[kept]

    corners = torch.rand(8, 2)
    return togi.Subject(Filter(), torch.cat([corners, corners + 0.5], 1))


def image_classifier():
    torch.manual_seed(0)
    return togi.Subject(timm.create_model("resnet18").eval(), torch.randn(1, 3, 32, 32))


def vision_transformer():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
    return togi.Subject(model.eval(), torch.randn(1, 3, 32, 32))


def windowed_transformer():
    torch.manual_seed(0)
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, depths=(1, 1), num_heads=(2, 2), window_size=7
    )
    return togi.Subject(model.eval(), torch.randn(1, 3, 56, 56))


def torchvision_classifier():
    torch.manual_seed(0)
    return togi.Subject(torchvision.models.mobilenet_v3_small().eval(), torch.randn(1, 3, 32, 32))
