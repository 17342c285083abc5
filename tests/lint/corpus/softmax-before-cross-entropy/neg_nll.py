# log_softmax belongs before NLLLoss
from torch import nn

model = nn.Sequential(nn.Linear(10, 4), nn.LogSoftmax(dim=-1))
criterion = nn.NLLLoss()


def loss(x, y):
    return criterion(model(x), y)
