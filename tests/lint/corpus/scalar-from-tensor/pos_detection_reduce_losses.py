# torchvision's reference loop: one value per step for the logger and the finiteness check
import math
import sys

import torch

import utils


def train_one_epoch(model, optimizer, data_loader, device, epoch, scaler=None):
    model.train()
    metric_logger = utils.MetricLogger(delimiter="  ")
    for images, targets in metric_logger.log_every(data_loader, 50, f"Epoch {epoch}"):
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        loss_value = losses.item()  # expect: scalar-from-tensor
        if not math.isfinite(loss_value):
            sys.exit(1)
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        metric_logger.update(loss=loss_value, lr=optimizer.param_groups[0]["lr"])
