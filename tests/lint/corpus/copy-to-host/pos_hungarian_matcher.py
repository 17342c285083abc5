# DETR's matcher copies the cost matrix to the host in each forward
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn


class Matcher(nn.Module):
    @torch.no_grad()
    def forward(self, outputs: torch.Tensor, boxes: torch.Tensor):
        cost = torch.cdist(outputs, boxes, p=1)
        cost = cost.cpu()  # expect: copy-to-host
        rows, columns = linear_sum_assignment(cost)
        return rows, columns
