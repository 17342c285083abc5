"""togi: make a PyTorch model faster, make it fit, and prove that it is still right.

The public names are loaded when they are first used, so that ``import togi`` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "FitError": "togi.core.errors",
    "Inputs": "togi.subject.inputs",
    "Plan": "togi.footprint.fit.plan",
    "Subject": "togi.subject.inputs",
    "TogiError": "togi.core.errors",
    "bench": "togi.api",
    "check": "togi.api",
    "fit": "togi.api",
    "lean": "togi.tiling.lean",
    "load": "togi.api",
    "memory": "togi.api",
    "no_hidden_hooks": "togi.footprint.guard.hidden_hooks",
    "predict_memory": "togi.api",
    "tune": "togi.api",
    "within": "togi.footprint.guard.within",
}

__all__ = [
    "FitError",
    "Inputs",
    "Plan",
    "Subject",
    "TogiError",
    "__version__",
    "bench",
    "check",
    "fit",
    "lean",
    "load",
    "memory",
    "no_hidden_hooks",
    "ops",
    "predict_memory",
    "tune",
    "within",
]

_SUBPACKAGES = ("ops",)


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"togi.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'togi' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_SUBPACKAGES})
