"""What a CPU kernel takes and gives back inside one operation, found by running that operation alone.

Which algorithm a convolution chooses, and what it reorders, depends on the shapes, the instruction set and the version:
no formula holds for all. So the one operation is run, on zeros of the same shapes and strides, under the allocator's
own count. Only operations near the peak are asked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from togi.footprint.prediction.recording import Call, TensorSpec, _is_spec, specs_of
from togi.tiling.peak import peak_bytes


class Probe:
    """Remembers what it measured."""

    def __init__(self, *, limit_bytes: int) -> None:
        """``limit_bytes``: operations whose arguments take more are not run."""
        self.limit_bytes = limit_bytes
        self.measured: dict[str, int | None] = {}

    def peak_bytes(self, call: Call) -> int | None:
        """The most that the operation holds beside its arguments, results included; None where it cannot be run."""
        if call.key not in self.measured:
            if _profiler_enabled():  # the caller's own: torch has one at a time
                return None
            self.measured[call.key] = self._measure(call)
        return self.measured[call.key]

    def _measure(self, call: Call) -> int | None:
        if call.read_bytes + call.made_bytes > self.limit_bytes:
            return None
        with _disable_current_modes(), torch.set_grad_enabled(call.grad_enabled):
            args, kwargs = zeros_of(call.args)
            try:
                call.func(*args, **kwargs)  # what a kernel builds once is not what every call takes
                return peak_bytes(lambda: call.func(*args, **kwargs), "cpu") or 0
            except RuntimeError:  # the kernel refuses zeros: the caller reports it as not measured
                return None


def zeros_of(specs: Any) -> Any:
    """Real tensors of the shapes, strides and dtypes."""
    return tree_map(lambda leaf: _zeros(leaf) if _is_spec(leaf) else leaf, specs, is_leaf=_is_spec)


def _zeros(spec: TensorSpec) -> Tensor:
    storage = torch.zeros(max(1, spec.bytes // spec.dtype.itemsize), dtype=spec.dtype)
    return storage.as_strided(spec.shape, spec.stride)


def sizes_by_running(func: Any, args: Any, kwargs: Any, results: Any) -> Any:
    """Fake results with the shapes that the kernel really gives, where the fake kernel does not know one of them.

    oneDNN decides the size of a recurrent layer's workspace, which autograd keeps.
    """
    with _disable_current_modes():
        real_args, real_kwargs = zeros_of(specs_of((args, kwargs)))
        real = [tuple(t.shape) if isinstance(t, Tensor) else () for t in func(*real_args, **real_kwargs)]
    return tuple(
        t if not isinstance(t, Tensor) or tuple(t.shape) == shape else t.new_empty(shape)
        for t, shape in zip(tree_leaves(results), real, strict=True)
    )
