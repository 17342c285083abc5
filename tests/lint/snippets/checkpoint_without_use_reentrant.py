"""Snippets of the rule ``checkpoint-without-use-reentrant``."""

valid = (
    """
    from torch.utils.checkpoint import checkpoint

    y = checkpoint(f, x, use_reentrant=False)
    """,
    """
    from torch.utils.checkpoint import checkpoint

    y = checkpoint(f, x, use_reentrant=True)
    """,
    """
    from torch.utils.checkpoint import checkpoint

    y = checkpoint(f, x, **options)
    """,
    """
    from mine import checkpoint

    y = checkpoint(f, x)
    """,
    """
    import torch.utils.checkpoint as cp

    run = cp.checkpoint
    """,
)
invalid = (
    """
    from torch.utils.checkpoint import checkpoint

    y = checkpoint(f, x)  # here
    """,
    "y = torch.utils.checkpoint.checkpoint(f, *args)  # here",
    """
    import torch.utils.checkpoint as cp

    def forward(x):
        return cp.checkpoint_sequential(  # here
            layers,
            2,
            x,
        )
    """,
)
