"""PyTorch's threads of OpenMP: a process that has some cannot fork a child that computes.

Behind it: that torch's CPU library is linked to an OpenMP library (torch 2.9 to 2.15 on Linux). Where it is not, or the
library is older than OpenMP 5.0, nothing is ended, and whoever wanted to fork finds the threads still there.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

__all__ = ["end_openmp_threads"]

_SOFT = 1
"""``omp_pause_soft``: what OpenMP keeps besides its threads stays."""


def end_openmp_threads() -> None:
    """End those that parallel operators of the calling thread left; its next one starts others."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        # looked up from torch's own library: a process may hold several of OpenMP
        pause = getattr(ctypes.CDLL(str(library)), "omp_pause_resource_all", None)
        if pause is not None:
            pause(_SOFT)
