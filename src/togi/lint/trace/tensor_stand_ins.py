"""The methods of ``torch.Tensor`` that tell or change the device, as they behave with a GPU.

They are replaced on the class, so that they hold in all threads, inside of torch's own Python functions and for
parameters; the originals do the work on the CPU.
"""

# ruff: noqa: ARG001, ARG005 - the signatures are those of torch.Tensor

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from togi.lint.trace.cuda_semantics import READ, TO_DEVICE, TO_HOST, record_copy, record_transfer
from togi.lint.trace.patches import Patches
from togi.lint.trace.placement import CPU, CUDA, device_of, is_pinned, named_device, on_cuda, pin, place, place_storage
from togi.lint.trace.recorder import EventRecorder, call_name
from togi.torch_internals.cuda import GROUPING_NAME, GROUPING_OWNER, TensorBase, grouping


def patch_reads(patches: Patches, recorder: EventRecorder) -> None:
    """Ways to the host that no operator shows, because the memory is the host's already."""

    def tolist(self: Tensor) -> Any:
        if on_cuda(self):
            recorder.record("wait", call_name("Tensor.tolist"), READ, tensors=[self], waits=True)
        return TensorBase.tolist(self)

    def numpy(self: Tensor, *, force: bool = False) -> Any:
        _note_numpy(recorder, self, force)
        return TensorBase.numpy(self, force=force)

    original_array: Callable[..., Any] = torch.Tensor.__array__

    def array(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        _note_numpy(recorder, self, False)
        return original_array(self, *args, **kwargs)

    original_reduce: Callable[..., Any] = torch.Tensor.__reduce_ex__

    def reduce(self: Tensor, protocol: Any) -> Any:
        if on_cuda(self):
            why = "it is pickled, for which its values are copied to the host"
            record_copy(recorder, call_name("pickle"), self, why, waits=True)
        with recorder.quiet():
            return original_reduce(self, protocol)

    original_deepcopy: Callable[..., Tensor] = torch.Tensor.__deepcopy__

    def deepcopy(self: Tensor, memo: dict[int, Any]) -> Any:
        with recorder.quiet():
            return place(original_deepcopy(self, memo), device_of(self))

    for name, value in {
        "tolist": tolist,
        "numpy": numpy,
        "__array__": array,
        "__reduce_ex__": reduce,
        "__deepcopy__": deepcopy,
    }.items():
        patches.set(torch.Tensor, name, value)


def _note_numpy(recorder: EventRecorder, tensor: Tensor, force: bool) -> None:
    if not on_cuda(tensor):
        return
    if force:
        record_copy(recorder, call_name("Tensor.numpy"), tensor, TO_HOST, waits=True)
    else:
        why = "a tensor on the GPU is turned into an array, which fails there"
        recorder.record("mixed-devices", "Tensor.numpy", why, tensors=[tensor])


def patch_moves(patches: Patches, recorder: EventRecorder) -> None:
    """``to``, ``cuda``, ``cpu``, ``type``: a move changes the mark, with a copy of the values like on a GPU."""

    def move(op: str, tensor: Tensor, target: torch.device, non_blocking: bool, **change: Any) -> Tensor:
        record_transfer(recorder, op, tensor, target, non_blocking=non_blocking)
        change["dtype"] = change.get("dtype") or tensor.dtype
        moved = place(TensorBase.to(tensor, copy=True, **change), target)
        return pin(moved) if target.type == "cpu" and non_blocking else moved

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target, non_blocking, change = _parsed(args, dict(kwargs))
        if target is None or target.type == device_of(self).type or _elsewhere(self, target):
            if target is not None and _elsewhere(self, target):
                change["device"] = target
            change["dtype"] = change.get("dtype") or self.dtype
            return TensorBase.to(self, **change)
        change.pop("copy", None)
        return move("Tensor.to", self, target, non_blocking, **change)

    def cuda(
        self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> Tensor:
        if on_cuda(self):
            return self
        return move("Tensor.cuda", self, CUDA, non_blocking, memory_format=memory_format)

    def cpu(self: Tensor, memory_format: Any = torch.preserve_format) -> Tensor:
        if not on_cuda(self):
            return TensorBase.cpu(self, memory_format=memory_format)
        return move("Tensor.cpu", self, CPU, False, memory_format=memory_format)

    def type_as(self: Tensor, other: Tensor) -> Tensor:
        return to(self, other)

    original_storage_to = torch.UntypedStorage.to

    def storage_to(self: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> Any:
        """``torch.load`` calls it for ``map_location="cuda"``."""
        if torch.device(device).type != "cuda":
            return original_storage_to(self, device=device, non_blocking=non_blocking)
        with recorder.quiet():
            moved = place_storage(self.clone())  # type: ignore[no-untyped-call]
        recorder.record("copy", call_name("torch.load"), TO_DEVICE, moved_bytes=self.nbytes(), waits=True)
        return moved

    patches.set(torch.UntypedStorage, "to", storage_to)
    patches.set(torch.Tensor, "to", to)
    patches.set(torch.Tensor, "type_as", type_as)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(torch.Tensor, "cpu", cpu)


def _parsed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.device | None, bool, dict[str, Any]]:
    """``(device, non_blocking, {dtype, copy, memory_format})`` of the overloads of ``Tensor.to``."""
    flags = [a for a in args if isinstance(a, bool)]
    plain = [a for a in args if not isinstance(a, bool)]
    other = kwargs.pop("other", None)
    plain = [other, *plain] if other is not None else plain
    device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    for value in plain:
        if isinstance(value, Tensor):
            device, dtype = device_of(value), value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
        elif value is not None:
            device = value
    non_blocking = bool(kwargs.pop("non_blocking", flags[0] if flags else False))
    change: dict[str, Any] = {"copy": bool(kwargs.pop("copy", flags[1] if len(flags) > 1 else False)), **kwargs}
    if dtype is not None:
        change["dtype"] = dtype
    target = None if device is None else named_device(device)
    return target, non_blocking, change


def _elsewhere(tensor: Tensor, target: torch.device) -> bool:
    """Neither CPU nor CUDA is concerned: the meta device, say."""
    return target.type not in ("cpu", "cuda") or device_of(tensor).type not in ("cpu", "cuda")


def patch_appearance(patches: Patches) -> None:
    """Replace the attributes and methods that tell a tensor's device."""

    def get_device(self: Tensor) -> int:
        index = device_of(self).index
        return -1 if index is None else index

    def pin_memory(self: Tensor, device: Any = None) -> Tensor:
        return self if is_pinned(self) else pin(TensorBase.clone(self))

    def record_stream(self: Tensor, stream: Any) -> None:
        """The memory is not reused by another stream: there is only one here."""

    properties: dict[str, Callable[[Tensor], Any]] = {
        "device": device_of,
        "is_cuda": on_cuda,
        "is_cpu": lambda self: device_of(self).type == "cpu",
    }
    original_groups = grouping()

    def groups(lists: list[list[Tensor | None]], with_indices: bool = False) -> Any:
        """Optimizers and clipping ask C++ for the device of each group, which is that of its first tensor."""
        by_device = original_groups(lists, with_indices)
        return {(_group_device(group, device), dtype): group for (device, dtype), group in by_device.items()}

    patches.set(GROUPING_OWNER, GROUPING_NAME, groups)
    for name, read in properties.items():
        patches.set(torch.Tensor, name, property(read))
    patches.set(torch.Tensor, "get_device", get_device)
    patches.set(torch.Tensor, "pin_memory", pin_memory)
    patches.set(torch.Tensor, "is_pinned", lambda self, device=None: is_pinned(self))
    patches.set(torch.Tensor, "record_stream", record_stream)


def _group_device(group: Any, real: torch.device) -> torch.device:
    tensors, _ = group
    first = next((t for t in tensors[0] if t is not None), None)
    return real if first is None else device_of(first)
