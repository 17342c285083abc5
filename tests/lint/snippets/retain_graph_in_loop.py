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

# %%
def rows(model, x):
    out, hidden = model(x)
    for row in out:
        first = row.sum()
        total = first * 2
        total.backward(retain_graph=True)

# %%
def each_batch(model, loader, classes):
    for x in loader:
        logits = model(x)
        for c in range(classes):
            score = logits[:, c].sum()
            score.backward(retain_graph=True)

# %%
def attack(model, criterion, images, labels):
    x = images.clone().to('cuda').requires_grad_()
    for step in range(10):
        loss = criterion(model(x), labels)
        loss.backward(retain_graph=True)  # expect: retain-graph-in-loop

# %%
def fit(model, criterion, labels, steps):
    x = torch.randn(4, 3, requires_grad=True)
    weight = torch.nn.Parameter(torch.ones(3))
    for step in range(steps):
        loss = criterion(model(x) * weight, labels)
        loss.backward(retain_graph=True)  # expect: retain-graph-in-loop
