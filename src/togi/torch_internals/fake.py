"""Fake tensors: shapes, dtypes and strides without values.

Behind it: torch._subclasses.fake_tensor (torch 2.9 to 2.15; its name is private though documented in torch.fx,
"Fake tensor"). When it goes: the "meta" device computes shapes, but loses the device and the aliasing of results.
"""

from __future__ import annotations

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "UnsupportedOperatorException",
]
