# %%
def read(model, x):
    scores = model(x).to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    return scores.numpy()

# %%
def read(model, x):
    scores = model(x).cpu()
    return scores.numpy()

# %%
def collect(model, loader):
    found = []
    for x in loader:
        found.append(model(x.cuda()).to("cpu", non_blocking=True))
    torch.cuda.synchronize()
    return [one.numpy() for one in found]

# %%
def read(model, x, event):
    scores = model(x).to("cpu", non_blocking=True)
    event.record()
    event.synchronize()
    print(scores)

# %%
def read(model, x):
    y = model(x)
    scores = y.to("cpu", non_blocking=True)
    best = y.max().item()
    return scores.numpy(), best

# %%
def read(model, x, wait):
    scores = model(x).to("cpu", non_blocking=wait)
    return scores.numpy()

# %%
def move(x):
    x = x.to("cuda", non_blocking=True)
    return x.sum().item()

# %%
def read(model, x):
    scores = model(x).to("cpu", non_blocking=True)  # expect: unawaited-copy-to-host
    return scores.numpy()

# %%
def read(model, x):
    return model(x).to(device="cpu", non_blocking=True).tolist()  # expect: unawaited-copy-to-host

# %%
def read(model, x):
    host = torch.device("cpu")
    loss = model(x).mean().to(host, non_blocking=True)  # expect: unawaited-copy-to-host
    print(loss)

# %%
def read(model, x):
    y = model(x.cuda())
    host = torch.empty(8, pin_memory=True)
    host.copy_(y, non_blocking=True)  # expect: unawaited-copy-to-host
    for value in host.tolist():
        print(value)
