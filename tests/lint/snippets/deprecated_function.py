"""Snippets of the rule ``deprecated-function``."""

valid = (
    """
    torch.linalg.qr(a)
    torch.outer(a, b)
    """,
    """
    import torch.nn as nn
    nn.init.xavier_uniform_(w)
    """,
    """
    import numpy as torch
    torch.cholesky(a)
    """,
    """
    import jax.numpy as jnp
    jnp.linalg.svd(a)
    range(3)
    """,
    """
    def symeig(a):
        return torch.linalg.eigh(a)

    symeig(a)
    """,
    """
    if hasattr(torch, 'symeig'):
        w = torch.symeig(a)
    """,
    """
    try:
        from torch.func import vmap
    except ImportError:
        from functorch import vmap

    vmap(f)(x)
    """,
    """
    x.norm()
    torch.normal(0, 1)
    """,
    """
    from torch import nn

    weight_norm = nn.utils.weight_norm
    if hasattr(nn.utils.parametrizations, 'weight_norm'):
        weight_norm = nn.utils.parametrizations.weight_norm
    """,
)
invalid = (
    """
    e, v = torch.symeig(a)  # here
    x = torch.range(0, 3)  # here
    """,
    """
    import torch.nn as nn

    nn.init.kaiming_normal(w)  # here
    """,
    """
    from torch.nn import init

    init.xavier_uniform(w)  # here
    """,
    """
    from torch import ger, mm

    y = ger(a, b)  # here
    """,
    """
    import torch.nn.functional as F

    def forward(x):
        return F.upsample(x, scale_factor=2)  # here
    """,
    """
    from functorch import vmap

    vmap(f)(x)  # here
    """,
    """
    import torch
    from torch.autograd import Variable

    x = Variable(torch.ones(3))  # here
    """,
    """
    from torchvision.transforms import v2

    t = v2.Compose([v2.ToTensor()])  # here
    """,
)
