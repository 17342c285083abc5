"""Snippets of the rule ``deprecated-amp``."""

valid = (
    """
    with torch.amp.autocast('cuda'):
        f(x)
    """,
    """
    with torch.autocast('cuda', dtype=torch.float16):
        f(x)
    """,
    """
    from torch.amp import GradScaler

    scaler = GradScaler('cuda')
    """,
    """
    try:
        from torch.amp import autocast
    except ImportError:
        from torch.cuda.amp import autocast

    with autocast():
        f(x)
    """,
    """
    from apex import amp

    with amp.autocast():
        f(x)
    """,
    """
    from mine.cuda.amp import autocast

    with autocast():
        f(x)
    """,
)
invalid = (
    """
    with torch.cuda.amp.autocast(enabled=True):  # here
        f(x)
    """,
    "scaler = torch.cuda.amp.GradScaler()  # here",
    """
    from torch.cuda.amp import GradScaler, autocast

    scaler = GradScaler(2.0**10)  # here
    with autocast(use_amp, torch.bfloat16):  # here
        f(x)
    """,
    """
    from torch.cuda import amp

    with amp.autocast(dtype=dtype):  # here
        f(x)
    """,
    """
    class F(torch.autograd.Function):
        @staticmethod
        @torch.cuda.amp.custom_fwd  # here
        def forward(ctx, x):
            return x
    """,
    """
    import torch.cuda.amp as amp

    @amp.custom_fwd(cast_inputs=torch.float32)  # here
    def forward(ctx, x):
        return x
    """,
    """
    with torch.cpu.amp.autocast(dtype=torch.bfloat16):  # here
        f(x)
    """,
)
