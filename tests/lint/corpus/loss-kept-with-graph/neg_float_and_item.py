# converted to numbers first, once in a while
def train(model, loader, optimizer, criterion, every=20):
    running, curve = 0.0, []
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if step % every == 0:
            running += loss.item()
            curve.append(float(loss))
    return running, curve
