# losses of one iteration are summed before backward
def train(model, heads, loader, optimizer, criteria):
    for x, targets in loader:
        features = model(x)
        loss = 0.0
        for head, criterion, target in zip(heads, criteria, targets):
            loss += criterion(head(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
