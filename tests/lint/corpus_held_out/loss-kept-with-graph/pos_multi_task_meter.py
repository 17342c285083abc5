# a meter object's sums, written out
import torch.nn.functional as F


def train(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        epoch_cls, epoch_box = 0, 0
        for images, classes, boxes in loader:
            optimizer.zero_grad()
            logits, regressed = model(images)
            cls_loss = F.cross_entropy(logits, classes)
            box_loss = F.smooth_l1_loss(regressed, boxes)
            (cls_loss + box_loss).backward()
            optimizer.step()
            epoch_cls += cls_loss  # expect: loss-kept-with-graph
            epoch_box = epoch_box + box_loss  # expect: loss-kept-with-graph
        print(epoch, epoch_cls / len(loader), epoch_box / len(loader))
