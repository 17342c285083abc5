"""Whether CUDA is lost to this process.

Behind it: torch.cuda._is_in_bad_fork (torch 2.9 to 2.15). When it goes: a forked child that uses CUDA raises
"Cannot re-initialize CUDA in forked subprocess", which can be tried where there is a device.
"""

from __future__ import annotations

import torch

__all__ = ["in_bad_fork"]


def in_bad_fork() -> bool:
    """In a forked child: whether CUDA was started before the fork, in which case it cannot be used here."""
    return bool(torch.cuda._is_in_bad_fork())
