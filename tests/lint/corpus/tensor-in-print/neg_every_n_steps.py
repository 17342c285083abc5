# prints one step in fifty
def train(model, loader, optimizer, criterion, log_every=50):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if step % log_every == 0:
            print(f"step {step}: loss {loss:.4f}")
