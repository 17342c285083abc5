"""The mode that watches every operator: in forward, in backward, in hooks, below TorchScript.

It says where results lie (where their operands lie, or where they were asked for), and records what makes the host
wait, what copies between devices, converts dtypes or memory layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.lint.trace.cuda_semantics import (
    DYNAMIC,
    HOST_CHECKS,
    SIZE,
    record_layout,
    record_promotion,
    record_transfer,
    seen_by_debug_mode,
    wait_of,
)
from togi.lint.trace.placement import CPU, CUDA, device_of, memory_of, named_device, on_cuda, pin, place, real_device
from togi.lint.trace.recorder import EventRecorder, call_name, current_call, open_calls
from togi.torch_internals.autograd import in_backward
from togi.torch_internals.modes import DispatchObserver, without_torch_function
from togi.torch_internals.operators import can_decompose, is_python_operator, python_kernel, schema_of
from togi.torch_internals.tensors import tensors_of, tree_leaves, tree_map

_ELEMENTWISE = torch.Tag.pointwise
_ONE_DEVICE = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "cat", "stack", "embedding", "gather", "scatter", "index_select"}
)
"""Operators besides elementwise ones that fail on a GPU when an operand with dimensions is left on the CPU."""


class OperatorWatch(DispatchObserver):
    """Runs every operator as it is, and keeps the books. ``simulated``: a CUDA device that is asked for is the CPU."""

    supports_higher_order_operators = False  # what torch.cond runs could not be seen

    def __init__(self, recorder: EventRecorder, *, simulated: bool = True) -> None:
        super().__init__()
        self.recorder = recorder
        self.simulated = simulated

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        with without_torch_function():
            return self._run(operator, args, dict(kwargs))

    def _run(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        if can_decompose(func):  # not taken apart yet: so it comes under inference mode and below autograd
            with self:
                return func.decompose(*args, **options)
        op = str(func)
        packet = op.rpartition(".")[0]
        if packet in _HANDLED:
            return _HANDLED[packet](self, func, args, options)
        operands = tensors_of((args, options))
        device = self._device(func, packet, operands, options)
        self._note_wait(op, args, options, operands)
        self._note_mixture(func, packet, operands)
        pinned = self.simulated and _substituted(options)
        result = self._inside(func, args, options) if is_python_operator(func) else self._computed(func, args, options)
        self._settle(packet, result, operands, device, pinned)
        self._note_size(op, packet, args, options, result, operands)
        record_promotion(self.recorder, func, operands, result)
        record_layout(self.recorder, packet, operands, options, result)
        return result

    def _device(self, func: Any, packet: str, operands: Sequence[Tensor], options: Mapping[str, Any]) -> torch.device:
        """Where the results lie. Call before the operator runs."""
        named = options.get("device")
        if named is not None and named_device(named).type == "cuda":
            return named_device(named)
        placed = next((device_of(t) for t in operands if on_cuda(t)), None)
        if not operands:
            return CUDA if _is_interior() else CPU
        if placed is None:
            return CPU
        return CPU if named is not None and _cpu_was_asked() else placed

    def _settle(self, packet: str, result: Any, operands: Sequence[Tensor], device: torch.device, pinned: bool) -> None:
        """Mark the results. What shares memory with an operand keeps its mark."""
        operand_memory = {memory_of(t) for t in operands}
        for position, leaf in enumerate(tree_leaves(result)):
            if not isinstance(leaf, Tensor) or (memory_of(leaf) in operand_memory and memory_of(leaf) is not None):
                continue
            place(leaf, CPU if (packet, position) in _ON_HOST else device)
            if pinned:
                pin(leaf)

    def _computed(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Computes in a wider dtype what the CPU has no kernel for in this one, as CUDA may have."""
        try:
            return func(*args, **options)
        except NotImplementedError as missing:
            if not self.simulated or "not implemented for" not in str(missing) or schema_of(func).is_mutable:
                raise
            return _in_wider_dtype(func, args, options)

    def _inside(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """A custom operator written in Python: what it calls is watched too."""
        kinds = [real_device(a).type for a in args if isinstance(a, Tensor)]
        kernel = python_kernel(func, kinds[0] if kinds else None)
        with self:
            return kernel(*args, **options)

    def _note_wait(self, op: str, args: Sequence[Any], options: Mapping[str, Any], operands: Sequence[Tensor]) -> None:
        why = wait_of(op, args, options)
        if why is None or any(call.short in HOST_CHECKS for call in open_calls()):
            return
        reported = seen_by_debug_mode(op)
        self.recorder.record("wait", call_name(op), why, tensors=operands[:2], waits=True, seen_by_debug_mode=reported)

    def _note_size(
        self,
        op: str,
        packet: str,
        args: Sequence[Any],
        options: Mapping[str, Any],
        result: Any,
        operands: Sequence[Tensor],
    ) -> None:
        if (op in DYNAMIC or packet in DYNAMIC) and wait_of(op, args, options) == SIZE:
            sizes = [tuple(tensor.shape) for tensor in tensors_of(result)]
            self.recorder.record(
                "dynamic-shape", call_name(op), SIZE, tensors=operands[:2], detail=f"{sizes[0]}" if sizes else ""
            )

    def _note_mixture(self, func: Any, packet: str, operands: Sequence[Tensor]) -> None:
        """An operand that the user left on the CPU: fails on a GPU. Only what the user's own call was given counts."""
        if not self.simulated or len(operands) < 2 or in_backward() or not self.recorder.armed:
            return
        if _ELEMENTWISE not in func.tags and packet.removeprefix("aten.").rstrip("_") not in _ONE_DEVICE:
            return
        on_host = [t for t in operands if t.dim() > 0 and not on_cuda(t)]
        if not on_host or not any(on_cuda(t) for t in operands):
            return
        call = current_call()
        of_call = {id(tensor) for tensor in tensors_of((call.args, call.kwargs))} if call else set()
        if any(id(t) in of_call for t in on_host):
            why = "a tensor on the CPU meets one on the GPU, which fails there"
            self.recorder.record("mixed-devices", call_name(str(func)), why, tensors=operands[:2])


def _in_wider_dtype(func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """``func`` with half-precision operands as float32 and integer ones as float64; results in the dtype they had."""
    narrow: list[torch.dtype] = []

    def widened(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dtype in (torch.float32, torch.float64, torch.bool):
            return leaf
        narrow.append(leaf.dtype)
        return leaf.to(torch.float32 if leaf.is_floating_point() else torch.float64)

    wide_args, wide_options = tree_map(widened, (tuple(args), options))
    result = func(*wide_args, **wide_options)
    return tree_map(lambda leaf: leaf.to(narrow[0]) if isinstance(leaf, Tensor) and narrow else leaf, result)


def _substituted(options: dict[str, Any]) -> bool:
    """Replace a CUDA device and pinned memory in the options by what is here; whether memory was to be pinned."""
    if options.get("device") is not None and torch.device(options["device"]).type == "cuda":
        options["device"] = CPU
    return bool(options.pop("pin_memory", False))


def _cpu_was_asked() -> bool:
    """Whether the open call names the CPU: autograd's formulas and C++ pass the real device along, users name it."""
    call = current_call()
    named = call.kwargs.get("device") if call else None
    return named is not None and torch.device(named).type == "cpu"


def _is_interior() -> bool:
    """Whether a tensor is made inside of a function that works on device tensors, not by the user."""
    call = current_call()
    if call is None:
        return in_backward()
    return any(on_cuda(tensor) for tensor in tensors_of((call.args, call.kwargs)))


def _copy_into(watch: OperatorWatch, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    into, source = args[0], args[1]
    non_blocking = bool(args[2] if len(args) > 2 else options.get("non_blocking", False))
    if on_cuda(into) != on_cuda(source):
        record_transfer(
            watch.recorder, call_name(str(func)), source, device_of(into), non_blocking=non_blocking, into=into
        )
    return func(*args, **options)


def _converted(watch: OperatorWatch, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """``_to_copy``: another dtype, layout or device. (``Tensor.to`` to another device is in ``tensor_stand_ins``.)"""
    source = args[0]
    named = options.pop("device", None)
    target = device_of(source)
    if named is not None and not watch.simulated:
        target = options["device"] = torch.device(named)
    elif named is not None and (torch.device(named).type == "cuda" or (on_cuda(source) and _cpu_was_asked())):
        target = CUDA if torch.device(named).type == "cuda" else CPU
    if target.type != device_of(source).type:
        non_blocking = bool(options.get("non_blocking", False))
        record_transfer(watch.recorder, call_name(str(func)), source, target, non_blocking=non_blocking)
    if watch.simulated:
        options.pop("pin_memory", None)
    result = place(func(*args, **options), target)
    record_layout(watch.recorder, "aten._to_copy", [source], options, result)
    return result


def _indexed(watch: OperatorWatch, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Indexing: indices left on the host are copied to the device, and the host waits."""
    base, indices = args[0], args[1] or ()
    if on_cuda(base) and watch.simulated:
        for index in indices:
            if isinstance(index, Tensor) and not on_cuda(index) and index.dtype not in (torch.bool, torch.uint8):
                record_transfer(watch.recorder, call_name(str(func)), index, CUDA, non_blocking=False)
        _note_value(watch, func, args)
    op = str(func)
    watch._note_wait(op, args, options, [base])
    result = func(*args, **options)
    if isinstance(result, Tensor) and result is not base:
        place(result, device_of(base))
    watch._note_size(op, op.rpartition(".")[0], args, options, result, [base])
    return result


def _note_value(watch: OperatorWatch, func: Any, args: Sequence[Any]) -> None:
    """A single value that the user holds in a CPU tensor is copied too, unless it is filled in by a mask."""
    call = current_call()
    value = args[2] if len(args) > 2 else None
    if not isinstance(value, Tensor) or on_cuda(value) or call is None:
        return
    masked = all(i is None or i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if not masked and any(tensor is value for tensor in tensors_of((call.args, call.kwargs))):
        record_transfer(watch.recorder, call_name(str(func)), value, CUDA, non_blocking=False)


def _pinned(watch: OperatorWatch, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    return pin(args[0].clone()) if watch.simulated else func(*args, **options)


_HANDLED: Mapping[str, Callable[[OperatorWatch, Any, Sequence[Any], dict[str, Any]], Any]] = {
    "aten.copy_": _copy_into,
    "aten._to_copy": _converted,
    "aten._pin_memory": _pinned,
    "aten.index": _indexed,
    "aten._unsafe_index": _indexed,
    "aten.index_put": _indexed,
    "aten.index_put_": _indexed,
    "aten._index_put_impl_": _indexed,
}
_ON_HOST = frozenset({("aten._pack_padded_sequence", 1)})
"""Results that lie on the host though their operands do not: ``(operator, position)``."""
