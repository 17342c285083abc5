"""Proves a candidate against the original: the truth, the error measures, the verdict.

``variants`` makes the inputs, ``make_truth`` the truth (once per study), ``verify`` the verdict on one candidate.
Whether an approximate candidate is acceptable is for the caller to say. Names are loaded when they are first used:
importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "Truth": "togi.verify.truth",
    "make_truth": "togi.verify.reference",
    "variants": "togi.verify.derived_inputs",
    "verify": "togi.verify.verdict",
}

__all__ = ["Truth", "make_truth", "variants", "verify"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'togi.verify' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
