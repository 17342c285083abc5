# %%
def train(loader, criterion, hidden):
    model = torch.nn.LSTM(8, 8)
    for x, y in loader:
        hidden = tuple(h.detach() for h in hidden)
        out, hidden = model(x, hidden)
        criterion(out, y).backward()

# %%
def train(loader, criterion):
    cell = torch.nn.GRUCell(8, 8)
    for x, y in loader:
        hidden = torch.zeros(4, 8)
        for step in x:
            hidden = cell(step, hidden)
        criterion(hidden, y).backward()

# %%
def train(loader, criterion, hidden):
    model = torch.nn.GRU(8, 8)
    for x, y in loader:
        out, hidden = model(x, hidden.detach())
        criterion(out, y).backward()

# %%
def train(model, loader, criterion, memory):
    for x, y in loader:
        out, memory = model(x, memory)
        criterion(out, y).backward()

# %%
def train(loader, criterion, hidden, every):
    model = torch.nn.GRU(8, 8)
    for step, (x, y) in enumerate(loader):
        out, hidden = model(x, hidden)
        criterion(out, y).backward()
        hidden.detach_()

# %%
class Net(torch.nn.Module):
    def forward(self, x, h):
        return x * h, h.detach()

def train(loader, criterion, h):
    model = Net()
    for x, y in loader:
        out, h = model(x, h)
        criterion(out, y).backward()

# %%
def train(loader, criterion, hidden):
    model = torch.nn.LSTM(8, 8)
    for x, y in loader:
        out, hidden = model(x, hidden)  # expect: hidden-state-not-detached
        criterion(out, y).backward()

# %%
def train(model, loader, criterion, optimizer):
    h, c = model.start()
    for x, y in loader:
        out, (h, c) = model(x, (h, c))  # expect: hidden-state-not-detached
        criterion(out, y).backward(retain_graph=True)
        optimizer.step()

# %%
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(4, 4)

    def forward(self, x, state):
        state = self.cell(x, state)
        return state.sum(), state

def train(steps, state):
    net = Net()
    for x in steps:
        loss, state = net(x, state)  # expect: hidden-state-not-detached
        loss.backward()
