"""Snippets of the rule ``dataloader-without-persistent-workers``."""

valid = (
    """
    from torch.utils.data import DataLoader

    l = DataLoader(d, num_workers=4)
    for x in l:
        f(x)
    """,
    """
    from torch.utils.data import DataLoader

    l = DataLoader(d)
    for e in range(9):
        for x in l: f(x)
    """,
    """
    from torch.utils.data import DataLoader

    for e in range(9):
        l = DataLoader(d, num_workers=4)
        for x in l:
            f(x)
    """,
    """
    from torch.utils.data import DataLoader

    l = DataLoader(d, num_workers=4, persistent_workers=True)
    for e in range(9):
        for x in l:
            f(x)
    """,
    """
    from torch.utils.data import DataLoader

    l = DataLoader(d, num_workers=n)
    for e in range(9):
        for x in l:
            f(x)
    """,
    """
    from torch.utils.data import DataLoader

    l = DataLoader(d, num_workers=4)
    for e in range(9):
        print(len(l))
    """,
)
invalid = (
    """
    from torch.utils.data import DataLoader

    l = DataLoader(d, num_workers=4)  # here
    for e in range(9):
        for i, x in enumerate(l):
            f(x)
    """,
    """
    from torch.utils.data import DataLoader

    def main(d):
        l = DataLoader(d, num_workers=4, persistent_workers=False)  # here
        for epoch in range(9):
            train(model, l, epoch)
    """,
    """
    import os
    from torch.utils.data import DataLoader

    class A:
        def __init__(self, d):
            self.l = DataLoader(d, num_workers=os.cpu_count())  # here

        def fit(self):
            while not self.done:
                for x in self.l:
                    f(x)
    """,
)
