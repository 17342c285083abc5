"""Snippets of the rule ``inference-records-graph``."""

valid = (
    """
    def evaluate(model, loader):
        model.eval()
        with torch.no_grad():
            for x, y in loader:
                out = model(x)
    """,
    """
    @torch.inference_mode()
    def evaluate(model, loader):
        return [model(x) for x in loader]
    """,
    """
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    """,
    """
    def step(model, loader, criterion):
        losses = []
        for x, y in loader:
            losses.append(criterion(model(x), y))
        torch.stack(losses).sum().backward()
    """,
    """
    def _run(model, loader):
        for x in loader:
            model(x)

    def evaluate(model, loader):
        with torch.no_grad():
            _run(model, loader)
    """,
    """
    torch.set_grad_enabled(False)
    for x in loader:
        y = model(x)
    """,
    """
    import torch
    import torchvision

    model = torchvision.models.resnet18().eval()
    for image in images:
        image.requires_grad_()
        (slope,) = torch.autograd.grad(model(image).sum(), image)
    """,
    """
    class Decoding:
        def generate(self, ids):
            for _ in range(9):
                ids = self.model(ids)
            return ids
    """,
    """
    def run(layers, x):
        for layer in layers:
            x = layer(x)
        return x
    """,
)
invalid = (
    """
    def evaluate(model, loader):
        model.eval()
        for x, y in loader:
            out = model(x)  # here
            print(len(out))
    """,
    """
    model.eval()
    for batch in loader:
        out = model(**batch)  # here
    """,
    """
    def run(model, train_loader, val_loader, criterion, optimizer):
        for epoch in range(3):
            for x, y in train_loader:
                criterion(model(x), y).backward()
                optimizer.step()
            for x, y in val_loader:
                out = model(x)  # here
    """,
    """
    import torch
    import timm

    class Worker:
        def __init__(self, queue):
            self.queue = queue
            self.model = timm.create_model('resnet50').eval()

        def run(self):
            while True:
                x, reply = self.queue.get()
                reply.put(self.model(x))  # here
    """,
    """
    import torch
    import torchvision

    model = torchvision.models.resnet18().cuda()
    for path in paths:
        out = model(read(path).cuda())  # here
    """,
)
