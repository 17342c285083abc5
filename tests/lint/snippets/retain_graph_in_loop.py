# %%
def train(model, loader, criterion, optimizer):
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()

# %%
def train(generator, critic, loader, optimizer):
    for x in loader:
        fake = generator(x)
        loss_d = critic(fake).mean()
        loss_d.backward(retain_graph=True)
        loss_g = -critic(fake).mean()
        loss_g.backward()
        optimizer.step()

# %%
def train(model, x, tasks):
    shared = model(x)
    losses = [task(shared) for task in tasks]
    for loss in losses:
        loss.backward(retain_graph=True)

# %%
def penalty(loss, x):
    return torch.autograd.grad(loss, x, create_graph=True)[0].norm()

def train(model, loader, criterion):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward(retain_graph=True)
        penalty(loss, x).item()

# %%
def train(model, loader, criterion, keep):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward(retain_graph=keep)

# %%
def once(model, x):
    model(x).sum().backward(retain_graph=True)

# %%
def train(model, loader, criterion, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
        optimizer.step()

# %%
def train(model, loader, criterion, optimizer, scaler):
    for x, y in loader:
        loss = criterion(model(x), y)
        scaler.scale(loss).backward(retain_graph=True)  # expect: retain-graph-in-loop
        scaler.step(optimizer)

# %%
while True:
    total = model(batch()).mean() + extra()
    total.backward(None, True)  # expect: retain-graph-in-loop
    optimizer.step()
