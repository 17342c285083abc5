# %%
@torch.no_grad()
def predict(model, loader):
    outputs = []
    for x in loader:
        outputs.append(model(x.cuda()).cpu())
    return torch.cat(outputs)

# %%
@torch.no_grad()
def predict(model, loader):
    classes = []
    for x in loader:
        classes.append(model(x.cuda()).argmax(1))
    return torch.cat(classes)

# %%
@torch.no_grad()
def predict(model, loader):
    outputs = []
    for x in loader:
        outputs.append(model(x))
    return torch.cat(outputs)

# %%
@torch.no_grad()
def evaluate(model, loader, criterion, device):
    losses = []
    for x, y in loader:
        loss = criterion(model(x.to(device)), y.to(device))
        losses.append(loss)
    return torch.stack(losses).mean()

# %%
@torch.no_grad()
def predict(model, loader, device):
    for x in loader:
        views = []
        for flipped in (x, x.flip(-1)):
            views.append(model(flipped.to(device)))
        yield torch.stack(views).mean(0).cpu()

# %%
@torch.no_grad()
def predict(model, loader):
    outputs = []
    for x in loader:
        outputs.append(model(x.cuda()))  # expect: outputs-kept-on-device
    return torch.cat(outputs)

# %%
def embed(model, loader, device):
    features = []
    with torch.inference_mode():
        for x, _ in loader:
            x = x.to(device)
            out = torch.sigmoid(model(x))
            features.append(out.float())  # expect: outputs-kept-on-device
    return torch.cat(features).cpu()

# %%
@torch.no_grad()
def predict(model, loader):
    outputs = []
    device = torch.device("mps" if torch.backends.mps.is_available() else "cuda")
    for x in loader:
        outputs.append(model(x.to(device)))
    return torch.cat(outputs)
