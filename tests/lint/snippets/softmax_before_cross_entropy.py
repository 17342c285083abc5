# %%
import torch.nn.functional as F

loss = F.cross_entropy(model(x), y)
distilled = F.cross_entropy(student(x), F.softmax(teacher(x), dim=1))
negative = F.nll_loss(F.log_softmax(model(x), dim=1), y)

# %%
import torch
import torch.nn.functional as F

def loss(model, x, y, normalized):
    out = model(x)
    if normalized:
        out = torch.softmax(out, dim=1)
    return F.cross_entropy(out, y)

# %%
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        if self.training:
            return self.head(x)
        return self.head(x).softmax(-1)

loss = nn.CrossEntropyLoss()(Net()(x), y)

# %%
from torch import nn

model = nn.Sequential(nn.Linear(3, 3), nn.LogSoftmax(dim=1))
loss = nn.NLLLoss()(model(x), y)

# %%
import torch
import torch.nn.functional as F

probabilities = torch.softmax(logits, dim=1)
loss = F.cross_entropy(probabilities, y)  # expect: softmax-before-cross-entropy

# %%
from torch import nn

model = nn.Sequential(nn.Linear(3, 3), nn.Softmax(dim=1)).to(device)
criterion = nn.CrossEntropyLoss()

def train(loader, optimizer):
    for x, y in loader:
        loss = criterion(model(x), y)  # expect: softmax-before-cross-entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %%
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        x = self.head(x)
        return F.log_softmax(x, dim=1)

model = Net()
out = model(x)
loss = nn.CrossEntropyLoss(label_smoothing=0.1)(out, y)  # expect: softmax-before-cross-entropy

# %%
import torch
import torch.nn.functional as F

def loss(x: torch.Tensor, y):
    return F.cross_entropy(input=x.softmax(-1).view(-1, 10), target=y)  # expect: softmax-before-cross-entropy
