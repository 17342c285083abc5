# eval() came before training, and train() after it stays
import torch
import torch.nn.functional as F
import torchvision


def main(train_loader, test_loader, epochs):
    model = torchvision.models.vgg16(num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        correct = torch.zeros((), device="cuda")
        with torch.no_grad():
            for x, y in test_loader:  # expect: inference-in-training-mode+2
                x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
                correct += (model(x).argmax(1) == y).sum()
        print(epoch, correct)
