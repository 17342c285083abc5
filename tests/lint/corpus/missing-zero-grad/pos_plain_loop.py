# the loop of a tutorial, with the line forgotten
import torch
from torch import nn
from torch.utils.data import DataLoader


def train(dataset):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to("cuda")
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        for images, labels in DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True):
            images = images.to("cuda", non_blocking=True)
            loss = criterion(model(images), labels.to("cuda", non_blocking=True))
            loss.backward()
            optimizer.step()  # expect: missing-zero-grad
        print(epoch)
    return model
