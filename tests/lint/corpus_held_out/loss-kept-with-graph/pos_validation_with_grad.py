# a validation loop without no_grad keeps every graph
import torch
import torchvision
import torch.nn.functional as F

model = torchvision.models.resnet18(num_classes=10).cuda()
model.eval()


def validate(loader):
    losses = []
    for x, y in loader:  # expect: inference-records-graph+2
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        loss = F.cross_entropy(model(x), y)
        losses.append(loss)  # expect: loss-kept-with-graph
    return torch.stack(losses).mean()


if __name__ == "__main__":
    from data import loader

    print(validate(loader))
