# detached before it is added
def train(model, loader, optimizer, criterion):
    total = 0.0
    history = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        history.append(loss.detach())
    return total / len(loader), history
