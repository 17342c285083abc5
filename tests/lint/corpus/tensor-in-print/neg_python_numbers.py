# what is printed is a number and a string
import time


def train(model, loader, optimizer, criterion):
    start = time.monotonic()
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        lr = optimizer.param_groups[0]["lr"]
        print(f"{step}/{len(loader)} lr={lr:.2e} batch={x.size(0)} since={start:.0f}")
