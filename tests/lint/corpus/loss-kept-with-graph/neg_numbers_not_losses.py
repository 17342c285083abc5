# what is summed are weights and counts
def train(model, loader, optimizer, criterion):
    total_weight = 0.0
    sizes = []
    for x, y, weight in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        total_weight += x.size(0)
        sizes.append(len(y))
    return total_weight, sizes
