# gradients are written with zeros instead of released
def train(model, loader, optimizer, criterion):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)  # expect: zero-grad-to-zeros
        criterion(model(x), y).backward()
        optimizer.step()
