"""Snippets of the rule ``copy-to-device-in-forward``."""

valid = (
    """
    import torch
    from torch import nn

    class Net(nn.Module):
        def forward(self, x, mask):
            mask = mask.to(x.device)
            y = torch.ones(3, device=x.device).to(torch.float16)
            return x.to(torch.float32) * mask.to(x.dtype) * y
    """,
    """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer('scale', torch.ones(3))
            self.table = torch.zeros(3).cuda()

        def forward(self, x):
            return x * self.scale.to(x.device)
    """,
    "table = torch.arange(10).cuda()",
)
invalid = (
    """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.ones(3)

        def forward(self, x):
            position = torch.arange(x.shape[1]).to(x.device)  # here
            mask = torch.zeros(3, dtype=torch.bool)
            mask = mask.cuda()  # here
            return x * self.scale.to(x.device) * position * mask  # here
    """,
    """
    import torch
    from torch import nn

    class Net(nn.Module):
        def forward(self, x):
            return self.shift(x)

        def shift(self, x):
            return x + torch.eye(3).type_as(x)  # here
    """,
)
