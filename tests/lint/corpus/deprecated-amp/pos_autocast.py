# torch.cuda.amp.autocast gave way to torch.amp.autocast("cuda")
import torch


def train(model, loader, optimizer, criterion):
    scaler = torch.cuda.amp.GradScaler()  # expect: deprecated-amp
    for x, y in loader:
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():  # expect: deprecated-amp
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
