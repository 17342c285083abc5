# the comparison happens once per epoch
def fit(model, loader, valid_loader, optimizer, criterion, evaluate, epochs):
    best = float("inf")
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        score = evaluate(model, valid_loader)
        if score < best:
            best = score
    return best
