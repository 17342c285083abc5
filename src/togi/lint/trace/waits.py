"""For which operations the host waits when their operands lie on a CUDA device.

What PyTorch does on a GPU cannot be observed without one, so it is written down here, by operator. The sources are the
CUDA kernels (``memcpy_and_sync`` and ``item`` in aten/src/ATen/native), PyTorch's own ``test_cuda_sync_guard`` and
issues #108968 (list of needless synchronisations), #134818 (multinomial) and #134819 (nanmedian), which took two off
the list before torch 2.9. ``tests/lint/trace/test_trace_gpu.py`` compares it with a real device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.lint.trace.placement import on_cuda

READ = "its value is read by the host"
SIZE = "the size of its result depends on values, which the host must know before it can go on"
CHECK = "an error flag is read by the host after the computation"

Args = Sequence[Any]
Test = Callable[[Args, Mapping[str, Any]], bool]


def wait_of(op: str, args: Args, kwargs: Mapping[str, Any]) -> str | None:
    """Why the host waits in ``op`` (``aten.nonzero.default``) called on the simulated device; None when it does not.

    Copies between devices are judged by ``transfers.py``.
    """
    packet = op.rpartition(".")[0]
    why = _ALWAYS.get(op) or _ALWAYS.get(packet)
    if why is not None:
        return why if _any_on_cuda(args) else None
    conditional = _SOMETIMES.get(op) or _SOMETIMES.get(packet)
    if conditional is None:
        return None
    why, test = conditional
    return why if test(args, kwargs) else None


def _any_on_cuda(args: Args) -> bool:
    return any(isinstance(a, Tensor) and on_cuda(a) for a in args) or any(
        isinstance(t, Tensor) and on_cuda(t) for a in args if isinstance(a, list | tuple) for t in a
    )


def _argument(args: Args, kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _cuda_argument(position: int, name: str) -> Test:
    def test(args: Args, kwargs: Mapping[str, Any]) -> bool:
        value = _argument(args, kwargs, position, name)
        return isinstance(value, Tensor) and on_cuda(value)

    return test


def _by_mask(args: Args, kwargs: Mapping[str, Any]) -> bool:
    """A boolean index on the device is turned into positions, whose number the host must know.

    A mask on the CPU is not: it is converted there and copied from pinned memory.
    """
    indices = _argument(args, kwargs, 1, "indices") or ()
    return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) and on_cuda(i) for i in indices)


def _put_by_mask(args: Args, kwargs: Mapping[str, Any]) -> bool:
    """As above, unless one host value is written without accumulating, which is a masked fill."""
    value = _argument(args, kwargs, 2, "values")
    fills = isinstance(value, Tensor) and value.numel() == 1 and not on_cuda(value)
    return _by_mask(args, kwargs) and (not fills or bool(_argument(args, kwargs, 3, "accumulate")))


def _counted_repeats(args: Args, kwargs: Mapping[str, Any]) -> bool:
    """The sum of the repeats is read unless ``output_size`` tells it."""
    return _cuda_argument(0, "repeats")(args, kwargs) and kwargs.get("output_size") is None


def _open_range(args: Args, kwargs: Mapping[str, Any]) -> bool:
    """A histogram without a range looks for it: least and greatest value are read."""
    low, high = _argument(args, kwargs, 2, "min") or 0, _argument(args, kwargs, 3, "max") or 0
    return bool(low == high) and _cuda_argument(0, "self")(args, kwargs)


def _matrix_exponential(args: Args, kwargs: Mapping[str, Any]) -> bool:
    """The degree of the approximation is chosen by norms, read from one matrix up."""
    return _cuda_argument(0, "self")(args, kwargs)


_ALWAYS: Mapping[str, str] = {
    "aten._local_scalar_dense": READ,
    "aten.equal": READ,
    "aten.allclose": READ,
    "aten.is_nonzero": READ,
    "aten.nonzero": SIZE,
    "aten.nonzero_numpy": SIZE,
    "aten.argwhere": SIZE,
    "aten.masked_select": SIZE,
    "aten._unique": SIZE,
    "aten._unique2": SIZE,
    "aten.unique_dim": SIZE,
    "aten.unique_consecutive": SIZE,
    "aten.unique_dim_consecutive": SIZE,
    "aten.bincount": SIZE,
    "torchvision.nms": SIZE,
    "aten._linalg_check_errors": CHECK,
    "aten.linalg_eig": "it is computed on the host",
    "aten._linalg_eigvals": "it is computed on the host",
}
_SOMETIMES: Mapping[str, tuple[str, Test]] = {
    "aten.index": (SIZE, _by_mask),
    "aten._unsafe_index": (SIZE, _by_mask),
    "aten.index_put": (SIZE, _put_by_mask),
    "aten.index_put_": (SIZE, _put_by_mask),
    "aten._index_put_impl_": (SIZE, _put_by_mask),
    "aten._unsafe_index_put": (SIZE, _put_by_mask),
    "aten.repeat_interleave.Tensor": (SIZE, _counted_repeats),
    "aten.histc": (READ, _open_range),
    "aten.linalg_matrix_exp": (READ, _matrix_exponential),
    "aten.masked_fill.Tensor": (READ, _cuda_argument(2, "value")),
    "aten.masked_fill_.Tensor": (READ, _cuda_argument(2, "value")),
    "aten.index_fill.int_Tensor": (READ, _cuda_argument(3, "value")),
    "aten.index_fill_.int_Tensor": (READ, _cuda_argument(3, "value")),
    "aten.normal.float_Tensor": (READ, _cuda_argument(1, "std")),
    "aten.normal.Tensor_Tensor": (READ, _cuda_argument(1, "std")),
    "aten._ctc_loss.Tensor": ("the lengths are copied to the host", _cuda_argument(2, "input_lengths")),
}

HOST_CHECKS = frozenset({"one_hot", "quantile", "nanquantile"})
"""Functions that check values on the CPU only, "to avoid a synchronisation" on a GPU: reads inside of them are not
ones that a GPU would see. (``one_hot`` without ``num_classes`` does read, and is judged by ``functions.py``.)"""

DYNAMIC = frozenset(name for name, why in _ALWAYS.items() if why is SIZE) | frozenset(
    name for name, (why, _) in _SOMETIMES.items() if why is SIZE and "put" not in name
)
"""Operators whose result has a size that depends on values."""
