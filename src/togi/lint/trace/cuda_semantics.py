"""PyTorch's behaviour on a CUDA device, operator by operator: when the host waits, what is copied, what is converted.

What PyTorch does on a GPU cannot be observed without one, so it is written down here. Waiting: the CUDA kernels
(``memcpy_and_sync`` and ``item`` in aten/src/ATen/native), PyTorch's own ``test_cuda_sync_guard`` and issues #108968
(list of needless synchronisations), #134818 (multinomial) and #134819 (nanmedian), which took two off the list before
torch 2.9. ``pytest -m gpu tests/lint/trace`` compares it with a real device. Copies: the rules of the CUDA runtime and
of PyTorch's copy kernel (aten/src/ATen/native/cuda/Copy.cu; CUDA Runtime API, "API synchronization behavior"):

- a blocking copy in either direction ends with ``memcpy_and_sync``: the host waits, and the debug mode sees it;
- ``non_blocking=True`` from pinned memory returns at once;
- ``non_blocking=True`` from pageable memory is staged by the driver before it returns: it does not wait for the GPU's
  queue, but it overlaps with nothing;
- ``non_blocking=True`` to a new CPU tensor gets pinned memory from PyTorch and returns at once, while copying into
  existing pageable memory waits, unseen by the debug mode.

torchvision's ``nms`` ends with a masked selection, which waits; see ``seen_by_debug_mode``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.lint.trace.placement import is_pinned, memory_of, on_cuda
from togi.lint.trace.recorder import EventRecorder, call_name
from togi.torch_internals.autograd import in_backward

READ = "its value is read by the host"
SIZE = "the size of its result depends on values, which the host must know before it can go on"
CHECK = "an error flag is read by the host after the computation"

Args = Sequence[Any]
Test = Callable[[Args, Mapping[str, Any]], bool]


def wait_of(op: str, args: Args, kwargs: Mapping[str, Any]) -> str | None:
    """Why the host waits in ``op`` (``aten.nonzero.default``) called on the simulated device; None when it does not.

    Copies between devices are judged by ``record_transfer``.
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


def _compared(args: Args, kwargs: Mapping[str, Any]) -> bool:
    """The values decide, unless sizes differ, nothing is in them, or both are the same numbers of the same memory
    (aten/src/ATen/native/cuda/Equal.cpp)."""
    left, right = _argument(args, kwargs, 0, "self"), _argument(args, kwargs, 1, "other")
    if not _any_on_cuda((left, right)) or left.shape != right.shape or left.numel() == 0:
        return False
    views = [(memory_of(t), t.storage_offset(), t.dtype, t.stride(), t.is_neg(), t.is_conj()) for t in (left, right)]
    return memory_of(left) is None or views[0] != views[1]


def _by_mask(args: Args, kwargs: Mapping[str, Any]) -> bool:
    """A boolean index on the device is turned into positions, whose number the host must know.

    A mask on the CPU is not: it is converted there and copied from pinned memory.
    """
    indices = _argument(args, kwargs, 1, "indices") or ()
    return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) and on_cuda(i) for i in indices)


def _put_by_mask(args: Args, kwargs: Mapping[str, Any]) -> bool:
    """Whether it waits as an indexing by a mask does: not where one host value is filled in without accumulating."""
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


_ALWAYS: Mapping[str, str] = {
    "aten._local_scalar_dense": READ,
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
    "aten.equal": (READ, _compared),
    "aten.index": (SIZE, _by_mask),
    "aten._unsafe_index": (SIZE, _by_mask),
    "aten.index_put": (SIZE, _put_by_mask),
    "aten.index_put_": (SIZE, _put_by_mask),
    "aten._index_put_impl_": (SIZE, _put_by_mask),
    "aten._unsafe_index_put": (SIZE, _put_by_mask),
    "aten.repeat_interleave.Tensor": (SIZE, _counted_repeats),
    "aten.histc": (READ, _open_range),
    "aten.linalg_matrix_exp": (READ, _cuda_argument(0, "self")),  # norms choose the degree of the approximation
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
ones that a GPU would see. (``one_hot`` without ``num_classes`` does read, and is judged by ``watching.py``.)"""

_WARNS_FROM_OPERATORS = "2.15"
"""Before it, ``torch.ops`` leaves warnings to C++, which prints them (pytorch #193451; so did 2.14.1)."""


def seen_by_debug_mode(op: str) -> bool:
    """Whether Python hears the debug mode's warning of ``op``: those that are not torch's own are called by
    ``torch.ops``."""
    return op.startswith("aten.") or torch.__version__ >= _WARNS_FROM_OPERATORS


DYNAMIC = frozenset(name for name, why in _ALWAYS.items() if why is SIZE) | frozenset(
    name for name, (why, _) in _SOMETIMES.items() if why is SIZE and "put" not in name
)
"""Operators whose result has a size that depends on values."""


TO_DEVICE = "values are copied from the host's pageable memory, and the host waits for everything queued before"
TO_DEVICE_PINNED = "values are copied from pinned memory, but blocking: the host waits for everything queued before"
STAGED = "the copy is not asynchronous: the memory is pageable, so the driver stages it before it returns"
ASYNCHRONOUS = "values are copied to the GPU, asynchronously"
TO_HOST = "values are copied to the host, which waits for them"
TO_HOST_ASYNCHRONOUS = "values are copied to the host asynchronously: synchronise before reading them"
TO_HOST_PAGEABLE = "the copy is not asynchronous: its target is pageable memory, so the host waits"


def record_transfer(
    recorder: EventRecorder,
    op: str,
    source: Tensor,
    target: torch.device,
    *,
    non_blocking: bool,
    into: Tensor | None = None,
) -> None:
    """Record a copy of ``source`` to the other device. ``into``: existing memory that it is copied into."""
    if source.numel() == 0:
        return
    if target.type == "cuda":
        pinned = is_pinned(source)
        if non_blocking:
            record_copy(recorder, op, source, ASYNCHRONOUS if pinned else STAGED, waits=False)
        else:
            record_copy(recorder, op, source, TO_DEVICE_PINNED if pinned else TO_DEVICE, waits=True)
    elif not non_blocking:
        record_copy(recorder, op, source, TO_HOST, waits=True)
    elif into is None or is_pinned(into):
        record_copy(recorder, op, source, TO_HOST_ASYNCHRONOUS, waits=False)
    else:
        record_copy(recorder, op, source, TO_HOST_PAGEABLE, waits=True, seen_by_debug_mode=False)


def record_copy(
    recorder: EventRecorder, op: str, source: Tensor, why: str, *, waits: bool, seen_by_debug_mode: bool = True
) -> None:
    """Record that the values of ``source`` go to the other device."""
    moved_bytes = source.numel() * source.element_size()
    recorder.record(
        "copy",
        op,
        why,
        tensors=[source],
        moved_bytes=moved_bytes,
        waits=waits,
        seen_by_debug_mode=seen_by_debug_mode,
    )


_NARROW = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}
_FORMATS = {torch.contiguous_format: "contiguous", torch.channels_last: "channels_last"}


def record_promotion(recorder: EventRecorder, func: Any, operands: Sequence[Tensor], result: Any) -> None:
    """An elementwise operation on floating-point operands of two widths: the narrower one is converted.

    Numbers and tensors without dimensions do not promote, so they do not count.
    """
    if not recorder.armed or len(operands) < 2 or not isinstance(result, Tensor) or result.dtype not in _NARROW:
        return
    if torch.Tag.pointwise not in func.tags or in_backward():
        return
    widths = {t.dtype for t in operands if t.dim() > 0 and t.dtype in _NARROW}
    narrow = min(widths, key=_NARROW.__getitem__, default=result.dtype)
    wide = max(widths, key=_NARROW.__getitem__, default=result.dtype)
    if _NARROW[narrow] == _NARROW[wide] or result.dtype != wide:
        return
    recorder.record(
        "promotion",
        call_name(str(func)),
        f"{_name(narrow)} and {_name(wide)} are mixed, so everything that follows is {_name(wide)}",
        tensors=operands[:2],
        moved_bytes=result.numel() * (_NARROW[wide] - _NARROW[narrow]),
        detail=f"{_name(narrow)} -> {_name(wide)}",
    )


def record_layout(
    recorder: EventRecorder, packet: str, operands: Sequence[Tensor], options: Mapping[str, Any], result: Any
) -> None:
    """A copy made to change the order of elements in memory: by ``contiguous``, ``reshape``, ``flatten``, ``to``."""
    layout = options.get("memory_format")
    if not recorder.armed or layout not in _FORMATS or packet not in ("aten.clone", "aten._to_copy"):
        return
    source = operands[0]
    if not isinstance(result, Tensor) or source.dtype != result.dtype or source.is_contiguous(memory_format=layout):
        return
    recorder.record(
        "layout",
        call_name(packet),
        f"{_layout(source)} memory is copied to become {_FORMATS[layout]}",
        tensors=[source],
        moved_bytes=2 * result.numel() * result.element_size(),
        detail=f"strides {tuple(source.stride())} -> {tuple(result.stride())}",
    )


def _layout(tensor: Tensor) -> str:
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    if tensor.is_contiguous():
        return "contiguous"
    return "expanded" if 0 in tensor.stride() else "transposed or sliced"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
